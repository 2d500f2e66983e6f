"""The fleet over a scripted provider: failover, intent before call, restart, verified end."""

import json

import pytest

from bamboo.errors import BooksUnwritable
from cloud.fake import FakeProvider, ScriptedRefusal
from cloud.fleet import Fleet
from cloud.intents import read_intents
from cloud.provider import (
    CloudRefused,
    CloudUnavailable,
    LaunchAnswer,
    RefusalKind,
    WishHeard,
)
from cloud.reconcile import POOL_OUT_S
from cloud.sight import OPEN_S, SHOWN_WITHIN_S
from tests.cloud.fleets import RUN, A, B, launches, make_fleet, out
from tests.full_disk import files_up_to


def test_it_launches_what_is_missing_in_one_call_and_then_nothing(fleet, provider) -> None:
    report = fleet.ensure(4)
    assert report.live == 4
    assert [(s.pool, s.count) for s in launches(provider)] == [(A, 4)]
    assert fleet.ensure(4).launched == ()
    assert len(launches(provider)) == 1


def test_it_fails_over_to_the_next_pool_and_takes_what_a_pool_has(fleet, provider) -> None:
    provider.script = [out("us-east-1a", grant=1)]
    report = fleet.ensure(4)
    assert report.live == 4
    assert sorted(one.pool.zone for one in report.launched) == ["us-east-1a"] + ["us-east-1b"] * 3
    assert [(s.pool, s.count) for s in launches(provider)] == [(A, 4), (B, 3)]
    assert any("had no capacity" in reason for reason in report.reasons)


def test_zones_get_their_nodes_and_one_without_capacity_is_stood_in_for(fleet, provider) -> None:
    zones = {A.zone: 2, B.zone: 2}
    provider.script = [out("us-east-1b", grant=1)]
    assert fleet.ensure(4, zones=zones).live == 4
    assert [(s.pool, s.count) for s in launches(provider)] == [(A, 2), (B, 2), (A, 1)]
    assert fleet.ensure(4, zones=zones).launched == ()


def test_no_capacity_anywhere_is_asked_again_only_after_three_minutes(
    fleet, provider, clock
) -> None:
    provider.script = [out(), out()]
    assert fleet.ensure(1).live == 0
    assert fleet.ensure(1).live == 0
    assert len(launches(provider)) == 2
    clock.now_s += POOL_OUT_S
    assert fleet.ensure(1).live == 1


def test_a_pool_may_be_asked_again_sooner(provider, clock, tmp_path) -> None:
    intents = tmp_path / "intents.jsonl"
    fleet = Fleet(provider, run=RUN, intents=intents, pool_out_s=2.0, now=clock, sleep=clock.sleep)
    provider.script = [out(), out()]
    assert fleet.ensure(1).live == 0
    clock.now_s += 1.9
    assert fleet.ensure(1).live == 0
    clock.now_s += 0.1
    assert fleet.ensure(1).live == 1


def test_intents_stand_in_the_file_before_the_call(provider, clock, tmp_path) -> None:
    seen: list[list[str]] = []

    class Spying(FakeProvider):
        def launch(self, specs):
            seen.append([i["intent"] for i in read_intents(tmp_path / "intents.jsonl")])
            return super().launch(specs)

        def terminate(self, instances):
            seen.append([i["intent"] for i in read_intents(tmp_path / "intents.jsonl")])
            return super().terminate(instances)

    fleet = make_fleet(Spying(listed=provider.listed), clock, tmp_path)
    (launched,) = fleet.ensure(1).launched
    fleet.terminate(launched.instance, reason="fenced")
    assert seen == [["launch"], ["launch", "launched", "terminate"]]
    record = read_intents(tmp_path / "intents.jsonl")[2]
    assert (record["instance"], record["reason"]) == (launched.instance, "fenced")


def test_a_lost_answer_is_asked_for_again_with_the_same_token(provider, clock, tmp_path) -> None:
    class Deaf(FakeProvider):
        """Performs the first launch, and loses the answer."""

        deaf = True

        def launch(self, specs) -> LaunchAnswer:
            answer = super().launch(specs)
            if self.deaf:
                self.deaf = False
                self._instances.clear()  # it does not show up by tag yet either
                raise CloudUnavailable("no answer")
            return answer

    deaf = Deaf(listed=provider.listed)
    fleet = make_fleet(deaf, clock, tmp_path)
    with pytest.raises(CloudUnavailable):
        fleet.ensure(2)
    fleet.ensure(2)
    tokens = [spec.token for spec in launches(deaf)]
    assert len(tokens) == 2
    assert len(set(tokens)) == 1


@pytest.mark.parametrize("came", [True, False])
def test_a_wish_that_was_heard_in_other_words_is_looked_for_by_its_tag(
    provider, clock, tmp_path, came
) -> None:
    class Mismatching(FakeProvider):
        """Carries out the first launch, loses the answer, and takes its token for nothing else;
        shows late what it did, if anything."""

        tokens: frozenset[str] = frozenset()

        def launch(self, specs):
            (spec,) = specs
            if spec.token in self.tokens:
                self.calls.append(("launch", spec))
                raise WishHeard("RunInstances: IdempotentParameterMismatch")
            first, self.tokens = not self.tokens, self.tokens | {spec.token}
            answer = super().launch(specs)
            if first:
                if not came:
                    self._instances.clear()
                raise CloudUnavailable("no answer")
            return answer

        def describe(self, run):
            shown = super().describe(run)
            return shown if clock.now_s >= 1020.0 else ()

    strict = Mismatching(listed=provider.listed)
    with pytest.raises(CloudUnavailable):
        make_fleet(strict, clock, tmp_path).ensure(2)
    fleet = make_fleet(strict, clock, tmp_path)
    for _ in range(19):
        fleet.ensure(2)
        clock.now_s += 1.0
    assert len(launches(strict)) == 2, "asking again would tell nothing"
    clock.now_s = 1000.0 + OPEN_S
    assert fleet.ensure(2).live == 2
    assert len(launches(strict)) == (2 if came else 3)


def test_an_instance_that_is_not_shown_yet_is_not_started_twice(clock, tmp_path, provider) -> None:
    class Slow(FakeProvider):
        """Shows no instance at all for a while."""

        def describe(self, run):
            super().describe(run)
            return ()

    slow = Slow(listed=provider.listed)
    fleet = make_fleet(slow, clock, tmp_path)
    assert fleet.ensure(3).live == 3
    assert fleet.ensure(3).live == 3
    assert len(launches(slow)) == 1
    clock.now_s += SHOWN_WITHIN_S
    assert len(fleet.ensure(3).launched) == 3


def test_a_later_launcher_goes_on_with_new_tokens_and_old_decisions(
    fleet, provider, clock, tmp_path
) -> None:
    first, _ = fleet.ensure(2).launched
    fleet.terminate(first.instance, reason="fenced")
    with (tmp_path / "intents.jsonl").open("a") as file:
        file.write('{"intent": "lau')  # the launcher died while it wrote
    later = make_fleet(provider, clock, tmp_path)
    assert later.ensure(2).live == 2
    tokens = {spec.token for spec in launches(provider)}
    assert len(tokens) == 2
    assert all(len(token) <= 64 for token in tokens)


def test_a_wish_whose_launcher_died_is_not_made_twice(provider, clock, tmp_path) -> None:
    class Mortal(FakeProvider):
        """Its caller dies during the first launch: heard by the cloud or not."""

        heard = True

        def launch(self, specs) -> LaunchAnswer:
            if not self.heard:
                self.calls += [("launch", spec) for spec in specs]
                raise KeyboardInterrupt
            answer = super().launch(specs)
            if len(launches(self)) == 1:
                raise KeyboardInterrupt
            return answer

    for heard in (True, False):
        folder = tmp_path / str(heard)
        folder.mkdir()
        mortal = Mortal(listed=provider.listed)
        mortal.heard = heard
        with pytest.raises(KeyboardInterrupt):
            make_fleet(mortal, clock, folder).ensure(2)
        mortal.heard = True
        later = make_fleet(mortal, clock, folder)
        assert later.ensure(2).live == 2
        # What was heard is there; what was not is asked for in the same words.
        assert len({spec.token for spec in launches(mortal)}) == 1
        assert len(launches(mortal)) == (1 if heard else 2)
        first = mortal.describe(RUN)[0].instance
        later.terminate(first, reason="lost")
        later.terminate(first, reason="lost, says the next launcher too")
        assert later.ensure(2).live == 2
        assert len({spec.token for spec in launches(mortal)}) == 2
        intents = [i["intent"] for i in read_intents(folder / "intents.jsonl")]
        second = ["launch-again", "launched"] * (not heard)  # the first launcher read no answer
        assert intents == ["launch", *second, "terminate", "launch", "launched"]


def test_a_request_that_no_pool_takes_is_an_error_at_once(fleet, provider) -> None:
    wrong = ScriptedRefusal(kind=RefusalKind.REFUSED, code="InvalidAMIID.NotFound")
    provider.script = [wrong, wrong]
    with pytest.raises(CloudRefused, match=r"InvalidAMIID\.NotFound") as caught:
        fleet.ensure(1)
    assert caught.value.exit_code == 2


def test_one_that_a_list_leaves_out_for_a_moment_is_not_replaced(provider, clock, tmp_path) -> None:
    class Flickers(FakeProvider):
        shows = True

        def describe(self, run):
            shown = super().describe(run)
            return shown if self.shows else shown[1:]

    flickers = Flickers(listed=provider.listed)
    fleet = make_fleet(flickers, clock, tmp_path)
    fleet.ensure(2)
    clock.now_s += 1000.0
    assert fleet.ensure(2).live == 2
    flickers.shows = False
    assert fleet.ensure(2).launched == ()
    clock.now_s += SHOWN_WITHIN_S
    assert len(fleet.ensure(2).launched) == 1


def test_offers_are_not_asked_for_when_nothing_is_missing(provider, clock, tmp_path) -> None:
    asked: list[float] = []

    class Counting(FakeProvider):
        def offers(self):
            asked.append(clock.now_s)
            return super().offers()

    fleet = make_fleet(Counting(listed=provider.listed), clock, tmp_path)
    for _ in range(5):
        fleet.ensure(2)
        clock.now_s += 30.0
    assert asked == [1000.0]


def test_on_a_full_disk_nothing_is_started_and_all_can_be_ended(fleet, provider, tmp_path) -> None:
    first, _ = fleet.ensure(2).launched
    intents = (tmp_path / "intents.jsonl").read_text()
    with files_up_to(len(intents) + 10):
        with pytest.raises(BooksUnwritable, match=r"intents\.jsonl"):
            fleet.ensure(4)
        assert len(launches(provider)) == 1  # what cannot be announced is not done
        fleet.terminate(first.instance, reason="lost")
        fleet.terminate_all()
    assert not any(o.state.live for o in provider.describe(RUN))
    assert (tmp_path / "intents.jsonl").read_text() == intents
    assert fleet.ensure(1).live == 1


def test_a_terminated_instance_is_not_counted_and_is_replaced(fleet, provider) -> None:
    first, _ = fleet.ensure(2).launched
    fleet.terminate(first.instance, reason="gone")
    report = fleet.ensure(2)
    assert report.live == 2
    assert len(report.launched) == 1


def test_intents_are_json_lines_with_a_reason(fleet, tmp_path) -> None:
    fleet.ensure(1)
    line, _ = (tmp_path / "intents.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["run"] == RUN
    assert "cheapest" in record["reason"]
