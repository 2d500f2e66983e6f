"""The fleet within its limits: anchors, gangs, the budget, throttling, several pools at once, and
what is left at the end."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from bamboo.ids import RunId, ZoneId
from cloud.backoff import FIRST_S, MOST_S, Backoff
from cloud.expiry import AGAIN_S, EXPIRY_S, PROLONGED_BEFORE_S, TO_STOP_S
from cloud.fake import FakeProvider, ScriptedRefusal
from cloud.fleet import Fleet
from cloud.provider import (
    CloudRefused,
    CloudThrottled,
    Held,
    HeldKind,
    LaunchAnswer,
    LaunchSpec,
    Market,
    Offer,
    Pool,
    RefusalKind,
)
from cloud.reconcile import POOL_OUT_S, Gang
from tests.cloud.fleets import RUN, A, B, Clock, launches, make_fleet, out

D = Pool(instance_type="g5.xlarge", zone=ZoneId("us-east-1a"), market=Market.ON_DEMAND)
OFFERS = (
    Offer(pool=A, usd_per_hour=0.4),
    Offer(pool=B, usd_per_hour=0.45),
    Offer(pool=D, usd_per_hour=1.0),
)
THROTTLED = ScriptedRefusal(kind=RefusalKind.THROTTLED, code="RequestLimitExceeded")


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider(listed=OFFERS)


def live(provider: FakeProvider) -> list[Pool]:
    return sorted(o.pool for o in provider.describe(RUN) if o.state.live)


def test_anchors_are_on_demand_and_each_market_replaces_its_own(fleet, provider) -> None:
    assert fleet.ensure(4, anchors=1).live == 4
    assert live(provider) == sorted([D, A, A, A])
    anchor = next(o for o in provider.describe(RUN) if o.pool == D)
    fleet.terminate(anchor.instance, reason="lost")
    fleet.ensure(4, anchors=1)
    assert live(provider) == sorted([D, A, A, A])
    fleet.ensure(2, anchors=1)
    assert live(provider) == sorted([D, A])


def test_no_more_are_started_than_may_be_however_often_pools_refuse(fleet, provider) -> None:
    provider.script = [out("us-east-1a", grant=1)]
    assert fleet.ensure(4, new=3).live == 3
    assert live(provider) == [A, B, B]
    report = fleet.ensure(4, new=0)
    assert (report.live, report.reasons) == (3, ())
    assert fleet.ensure(4, new=2).live == 4


@pytest.mark.parametrize("new", [None, 4])
def test_what_ends_at_once_is_not_rented_again_in_the_same_call(
    clock: Clock, tmp_path: Path, new: int | None
) -> None:
    """An image that does not boot, or a key that is gone: each further one would end like it."""

    class Ending(FakeProvider):
        def launch(self, specs: Sequence[LaunchSpec]) -> LaunchAnswer:
            answer = super().launch(specs)
            self.terminate([one.instance for one in answer.launched])
            return answer

    provider = Ending(listed=(Offer(pool=A, usd_per_hour=0.4), Offer(pool=B, usd_per_hour=0.5)))
    provider.script = [out("us-east-1a", grant=1)]
    report = make_fleet(provider, clock, tmp_path).ensure(2, new=new)
    assert (report.live, [one.pool for one in report.launched]) == (0, [A, B])


def test_spot_does_not_stand_in_for_an_anchor(fleet, provider) -> None:
    provider.script = [out("us-east-1a")]  # the anchor's pool is asked first
    report = fleet.ensure(3, anchors=1)
    assert live(provider) == [A, A]
    assert any("1 of 1 missing and no pool had capacity" in reason for reason in report.reasons)


GANG = Gang(nodes=4, within_s=60.0)


def test_a_gang_that_does_not_come_together_is_ended_and_its_pool_left_alone(
    fleet, provider, clock
) -> None:
    provider.script = [out("us-east-1a", grant=2), out("us-east-1b"), out("us-east-1a")]
    assert fleet.ensure(4, gang=GANG).live == 2
    clock.now_s += 60.0
    assert fleet.ensure(4, gang=GANG).live == 2  # its time is not over
    clock.now_s += 1.0
    report = fleet.ensure(4, gang=GANG)
    assert report.live == 0
    assert len(report.terminated) == 2
    assert report.reasons[0] == (
        "only 2 of the 4 nodes that the run needs to form came within 60 s: they are ended, and "
        "spot g5.xlarge in us-east-1a left alone for a while"
    )
    asked = len(launches(provider))
    assert fleet.ensure(4, gang=GANG).live == 0
    assert len(launches(provider)) == asked
    clock.now_s += POOL_OUT_S
    assert fleet.ensure(4, gang=GANG).live == 4


def test_a_gang_that_was_whole_has_its_time_again(fleet, provider, clock) -> None:
    assert fleet.ensure(4, gang=GANG).live == 4
    clock.now_s += 1000.0
    provider.interrupt(provider.describe(RUN)[0].instance)
    provider.script = [out(), out(), out()]
    report = fleet.ensure(4, gang=GANG)
    assert (report.live, report.terminated) == (3, ())
    clock.now_s += 61.0
    assert fleet.ensure(4, gang=GANG).live == 0


def test_without_a_gang_and_for_fewer_than_it_nobody_is_given_up(fleet, provider, clock) -> None:
    provider.script = [out(grant=2), out(), out()]
    assert fleet.ensure(4).live == 2
    clock.now_s += 100.0
    assert fleet.ensure(4).live == 2
    assert fleet.ensure(3, gang=GANG).live == 2  # a trace has no more


def test_never_more_than_the_budget_allows_those_that_leave_included(fleet, provider) -> None:
    assert fleet.ensure(6, most=5).live == 5
    first = provider.describe(RUN)[0].instance
    assert fleet.ensure(5, most=5, leaving=[first]).live == 4
    assert len(live(provider)) == 5
    provider.interrupt(first)
    assert fleet.ensure(5, most=5, leaving=[first]).live == 5


def test_throttling_pauses_the_calls_and_blames_no_pool(fleet, provider, clock) -> None:
    provider.script = [THROTTLED]
    assert fleet.ensure(1).live == 0
    calls = len(provider.calls)
    assert fleet.ensure(1).reasons == ("the cloud asked for fewer calls; waiting a little",)
    assert len(provider.calls) == calls
    clock.now_s += FIRST_S
    assert [one.pool for one in fleet.ensure(1).launched] == [A]


def test_each_throttling_waits_longer_and_an_answer_ends_that(fleet, provider, clock) -> None:
    waits = []
    for _ in range(6):
        provider.script = [THROTTLED]
        fleet.ensure(1)
        begin_s = clock.now_s
        provider.script = [THROTTLED]
        while "fewer calls" in "".join(fleet.ensure(1).reasons):
            clock.now_s += 0.1
        waits.append(clock.now_s - begin_s)
    assert waits[-1] > 4 * FIRST_S > waits[0]
    provider.script = []
    clock.now_s += MOST_S
    assert fleet.ensure(1).live == 1
    provider.script = [THROTTLED]
    fleet.ensure(2)
    clock.now_s += FIRST_S
    assert fleet.ensure(2).live == 2, "it begins anew"


def test_the_backoff_doubles_with_jitter_up_to_its_most() -> None:
    one, two = (Backoff(chance=random.Random(seed)) for seed in (1, 2))
    first, second = ([b.refused(now_s=0.0) for _ in range(10)] for b in (one, two))
    assert first != second
    for number, wait_s in enumerate(first):
        whole_s = min(MOST_S, FIRST_S * 2**number)
        assert whole_s / 2 <= wait_s <= whole_s


def test_a_throttled_call_is_told_and_the_next_turn_asks_nothing(provider, clock, tmp_path) -> None:
    class Busy(FakeProvider):
        def describe(self, run):
            super().describe(run)
            raise CloudThrottled("RequestLimitExceeded")

    busy = Busy(listed=OFFERS)
    fleet = make_fleet(busy, clock, tmp_path)
    with pytest.raises(CloudThrottled):
        fleet.ensure(1)
    assert fleet.ensure(1).live == 0
    assert len(busy.calls) == 1


def test_pools_about_as_cheap_are_asked_in_one_call(clock, tmp_path) -> None:
    provider = FakeProvider(listed=OFFERS, several_pools=True)
    fleet = make_fleet(provider, clock, tmp_path)
    provider.script = [out("us-east-1a", grant=1)]
    assert fleet.ensure(3).live == 3
    (asked,) = launches(provider)
    assert asked.pools == (A, B)
    assert live(provider) == [A, B, B]


def test_each_pool_exhausted_in_turn_is_passed_over(clock, tmp_path) -> None:
    for emptied in (A, B):
        provider = FakeProvider(listed=OFFERS[:2])
        folder = tmp_path / emptied.zone
        folder.mkdir()
        fleet = make_fleet(provider, clock, folder)
        provider.script = [out(emptied.zone), out(emptied.zone)]
        fleet.ensure(2)
        fleet.ensure(4)
        assert len(live(provider)) == 4


def volume(state: str, *, attached_to: str = "", run: RunId = RUN) -> Held:
    return Held(
        kind=HeldKind.VOLUME,
        id=f"vol-{state}",
        run=run,
        state=state,
        since_s=0.0,
        gib=100,
        attached_to=attached_to,
    )


def prolonged(provider: FakeProvider) -> list[object]:
    return [what for name, what in provider.calls if name == "prolong"]


def test_the_expiry_of_instances_moves_on_while_their_launcher_lives(
    fleet, provider, clock
) -> None:
    fleet.ensure(2)
    first, second = sorted(o.instance for o in provider.describe(RUN))
    clock.now_s += EXPIRY_S - PROLONGED_BEFORE_S - 1
    fleet.ensure(2)
    assert prolonged(provider) == []
    clock.now_s += 1
    fleet.ensure(2)
    fleet.ensure(2)
    assert prolonged(provider) == [((first, second), int(clock.now_s) + EXPIRY_S)]
    for _ in range(20):
        clock.now_s += EXPIRY_S / 4
        fleet.ensure(2)
        shown = [o.expires_at_s for o in provider.describe(RUN)]
        assert min(shown) - clock.now_s >= PROLONGED_BEFORE_S


def test_what_is_not_wanted_is_not_prolonged(fleet, provider, clock) -> None:
    fleet.ensure(3)
    first, second, third = sorted(o.instance for o in provider.describe(RUN))
    fleet.terminate(first, reason="lost")
    clock.now_s += EXPIRY_S
    fleet.ensure(1, leaving=[second])
    assert prolonged(provider) == [((third,), int(clock.now_s) + EXPIRY_S)]


def test_no_tag_goes_beyond_the_end_of_the_budget(
    provider: FakeProvider, clock: Clock, tmp_path: Path
) -> None:
    until_s = clock.now_s + EXPIRY_S / 2
    intents = tmp_path / "intents.jsonl"
    fleet = Fleet(provider, run=RUN, intents=intents, until_s=until_s, now=clock, sleep=clock.sleep)
    fleet.ensure(2)
    clock.now_s += EXPIRY_S / 3
    fleet.ensure(2)
    assert {o.expires_at_s for o in provider.describe(RUN)} == {int(until_s)}
    assert prolonged(provider) == []


def test_no_tag_outlasts_the_money_by_more_than_a_stop_takes(fleet, provider, clock) -> None:
    def tags() -> set[float]:
        return {o.expires_at_s - clock.now_s for o in provider.describe(RUN) if o.state.live}

    fleet.ensure(2, lasts_until_s=clock.now_s + 1200.0)
    assert tags() == {1200.0 + TO_STOP_S}
    # The money lasts longer than it seemed: the tags move on, now and then.
    for _ in range(50):
        clock.now_s += 120.0
        fleet.ensure(2, lasts_until_s=clock.now_s + 1200.0)
        assert min(tags()) >= 1200.0 + TO_STOP_S - AGAIN_S
    assert len(prolonged(provider)) <= 50 * 120.0 / AGAIN_S
    # More nodes spend it faster.
    clock.now_s += AGAIN_S
    fleet.ensure(2, lasts_until_s=clock.now_s + 2 * AGAIN_S)
    clock.now_s += AGAIN_S
    fleet.ensure(4, lasts_until_s=clock.now_s)
    assert tags() == {TO_STOP_S, TO_STOP_S + AGAIN_S}
    clock.now_s += AGAIN_S / 2
    fleet.ensure(4, lasts_until_s=clock.now_s - AGAIN_S)
    # One that is a little late is left alone.
    assert tags() == {TO_STOP_S - AGAIN_S, TO_STOP_S - AGAIN_S / 2}


def test_a_refused_prolonging_is_told_and_asked_again_later(clock, tmp_path) -> None:
    class Strict(FakeProvider):
        def prolong(self, instances, *, expires_at_s):
            FakeProvider.prolong(self, (), expires_at_s=expires_at_s)
            raise CloudRefused("EC2 refuses CreateTags: UnauthorizedOperation: no")

    provider = Strict(listed=OFFERS)
    fleet = make_fleet(provider, clock, tmp_path)
    fleet.ensure(1)
    clock.now_s += EXPIRY_S / 2
    (why,) = fleet.ensure(1).reasons
    assert why.startswith("its instances end by the tags of their start: EC2 refuses CreateTags")
    assert fleet.ensure(1).reasons == ()
    clock.now_s += AGAIN_S
    assert fleet.ensure(1).reasons
    assert len(prolonged(provider)) == 2


def test_the_end_takes_requests_and_volumes_that_are_left(fleet, provider) -> None:
    fleet.ensure(2)
    request = Held(
        kind=HeldKind.SPOT_REQUEST, id="sir-1", run=RUN, state="open", since_s=0.0, standing=True
    )
    other = volume("of-another", run=RunId("another"))
    provider.others = [request, volume("available"), other]
    fleet.terminate_all()
    assert live(provider) == []
    assert provider.others == [other]


def test_only_a_stop_waits_for_what_goes_with_its_instance(fleet, provider, clock) -> None:
    class GoesLate(FakeProvider):
        def held(self, run):
            found = super().held(run)
            return found if clock.now_s < 1050.0 else ()

    late = GoesLate(listed=OFFERS, others=[volume("in-use", attached_to="i-0001")])
    fleet._provider = fleet._sight._provider = late
    fleet.terminate_all()
    assert clock.now_s < 1001.0
    fleet.terminate_all(to_the_last=True)
    assert clock.now_s >= 1050.0
