"""The end of instances and of a whole fleet, over a cloud that lags, forgets and falls silent."""

import pytest

from bamboo.errors import BambooError
from bamboo.ids import InstanceId, RunId
from cloud.ending import StillLive
from cloud.fake import FakeProvider
from cloud.intents import read_intents
from cloud.provider import CloudRefused, CloudUnavailable, LaunchSpec
from cloud.sight import SHOWN_WITHIN_S
from tests.cloud.fleets import RUN, A, Clock, make_fleet


def test_terminate_all_looks_until_nothing_is_left(fleet, provider) -> None:
    fleet.ensure(3)
    fleet.terminate_all()
    assert not [o for o in provider.describe(RUN) if o.state.live]


def test_a_launcher_after_the_end_of_all_waits_for_nothing_of_before(
    fleet, provider, clock, tmp_path
) -> None:
    fleet.ensure(3)
    fleet.terminate_all()
    provider._instances.clear()  # EC2 shows ended ones for an hour, a new local cloud none
    report = make_fleet(provider, clock, tmp_path).ensure(3)
    assert (report.live, len(report.launched)) == (3, 3)


def test_a_launcher_after_one_that_was_killed_knows_what_is_not_shown_yet(
    lagging, clock, tmp_path
) -> None:
    lagging.shown_at_s = clock.now_s + 10.0
    make_fleet(lagging, clock, tmp_path).ensure(3)
    clock.now_s += 1.0
    report = make_fleet(lagging, clock, tmp_path).ensure(3)
    assert (report.live, report.launched) == (3, ())


class Lagging(FakeProvider):
    """Neither shows nor knows an instance until `shown_at_s`, as EC2 for some seconds."""

    shown_at_s = 0.0
    clock: Clock

    def describe(self, run):
        shown = super().describe(run)
        return shown if self.clock.now_s >= self.shown_at_s else ()

    def terminate(self, instances):
        if self.clock.now_s >= self.shown_at_s:
            return super().terminate(instances)
        return tuple(instances)

    def live(self) -> int:
        return sum(o.state.live for _, o in self._instances.values())


@pytest.fixture
def lagging(provider: FakeProvider, clock: Clock) -> Lagging:
    lagging = Lagging(listed=provider.listed)
    lagging.clock = clock
    return lagging


@pytest.mark.parametrize("shown_after_s", [0.0, 8.0, 0.9 * SHOWN_WITHIN_S])
def test_terminate_all_waits_for_what_the_cloud_does_not_know_yet(
    lagging, clock, tmp_path, shown_after_s
) -> None:
    lagging.shown_at_s = clock.now_s + shown_after_s
    fleet = make_fleet(lagging, clock, tmp_path)
    fleet.ensure(2)
    fleet.terminate_all()
    assert lagging.live() == 0
    assert clock.now_s - 1000.0 < shown_after_s + 5.0


def test_what_is_never_shown_is_named_and_given_up_after_its_time(lagging, clock, tmp_path) -> None:
    lagging.shown_at_s = float("inf")
    fleet = make_fleet(lagging, clock, tmp_path)
    fleet.ensure(2)
    with pytest.raises(StillLive) as caught:
        fleet.terminate_all(deadline_s=5.0)
    assert caught.value.names == "i-0001, i-0002"
    fleet.terminate_all()
    assert clock.now_s - 1000.0 >= SHOWN_WITHIN_S


def test_the_end_of_one_that_the_cloud_does_not_know_yet_is_asked_for_again(
    lagging, clock, tmp_path
) -> None:
    lagging.shown_at_s = clock.now_s + 10.0
    fleet = make_fleet(lagging, clock, tmp_path)
    fleet.ensure(3)
    for _ in range(20):
        clock.now_s += 1.0
        assert fleet.ensure(1).live == 1
    assert lagging.live() == 1
    intents = [i["intent"] for i in read_intents(tmp_path / "intents.jsonl")]
    assert intents == ["launch", "launched", "terminate", "terminate"]
    asked = [what for name, what in lagging.calls if name == "terminate"]
    assert len(asked) == 2, "the fake is reached by those that it knows alone"


def test_what_cannot_be_ended_yet_counts_against_the_most(lagging, clock, tmp_path) -> None:
    lagging.shown_at_s = clock.now_s + 10.0
    fleet = make_fleet(lagging, clock, tmp_path)
    first, _ = fleet.ensure(2, most=2).launched
    fleet.terminate(first.instance, reason="lost")
    for _ in range(20):
        fleet.ensure(2, most=2)
        assert lagging.live() <= 2
        clock.now_s += 1.0
    assert fleet.ensure(2, most=2).live == lagging.live() == 2


def test_an_end_that_came_to_nothing_is_asked_for_again(provider, clock, tmp_path) -> None:
    class Forgetful(FakeProvider):
        """Takes an end, and does nothing about the first one."""

        first = True

        def terminate(self, instances):
            if self.first:
                self.first = False
                return ()
            return super().terminate(instances)

    forgetful = Forgetful(listed=provider.listed)
    fleet = make_fleet(forgetful, clock, tmp_path)
    fleet.ensure(2)
    for _ in range(30):
        clock.now_s += 3.0
        assert fleet.ensure(1).live == 1
    assert [o.state.live for o in forgetful.describe(RUN)] == [True, False]


def test_terminate_all_looks_longer_after_a_lost_answer(provider, clock, tmp_path) -> None:
    class Late(FakeProvider):
        """Loses the answer to a launch, and shows its instances five seconds later."""

        def launch(self, specs):
            super().launch(specs)
            raise CloudUnavailable("no answer")

        def describe(self, run):
            return super().describe(run) if clock.now_s >= 1005.0 else ()

    late = Late(listed=provider.listed)
    fleet = make_fleet(late, clock, tmp_path)
    with pytest.raises(CloudUnavailable):
        fleet.ensure(2)
    fleet.terminate_all()
    assert not any(o.state.live for o in late.describe(RUN))
    assert clock.now_s >= 1000.0 + SHOWN_WITHIN_S


def test_a_later_launcher_does_not_wait_for_a_wish_that_is_shown(
    fleet, provider, clock, tmp_path
) -> None:
    fleet.ensure(2)
    make_fleet(provider, clock, tmp_path).terminate_all()
    assert not any(o.state.live for o in provider.describe(RUN))
    assert clock.now_s < 1000.0 + 1.0


def test_terminate_all_names_what_it_could_not_end(provider, clock, tmp_path) -> None:
    class Deaf(FakeProvider):
        def terminate(self, instances):
            return ()

    fleet = make_fleet(Deaf(listed=provider.listed), clock, tmp_path)
    fleet.ensure(1)
    with pytest.raises(BambooError, match=r"i-0001.*bamboo:run=calm-fox"):
        fleet.terminate_all(deadline_s=1.0)


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_the_deadline_of_an_end_holds_when_the_cloud_falls_silent(
    provider, clock, tmp_path, answers
) -> None:
    call_s = 30.0

    class Silent(FakeProvider):
        """Answers so many calls as `left` says, then each takes its whole timeout."""

        left = 1_000_000

        def _heard(self) -> None:
            self.left -= 1
            if self.left < 0:
                clock.now_s += call_s
                raise CloudUnavailable("DescribeInstances got no answer")

        def describe(self, run):
            self._heard()
            return super().describe(run)

        def terminate(self, instances):
            self._heard()
            return ()

    silent = Silent(listed=provider.listed)
    fleet = make_fleet(silent, clock, tmp_path)
    fleet.ensure(1)
    silent.left = answers
    begin_s, told = clock.now_s, []
    with pytest.raises(StillLive, match="may still be running") as caught:
        fleet.terminate_all(deadline_s=20.0, waiting=told.append)
    assert clock.now_s - begin_s <= 20.0 + call_s
    assert caught.value.names == "i-0001"
    assert len(told) <= 1
    begin_s = clock.now_s
    with pytest.raises(StillLive):
        fleet.terminate_all(deadline_s=70.0, waiting=told.append)
    assert clock.now_s - begin_s <= 70.0 + call_s
    assert told[-1].endswith("for up to 70 s: DescribeInstances got no answer")


def test_instance_ids_of_another_run_are_left_alone(fleet, provider) -> None:
    fleet.ensure(1)
    provider.launch(
        [LaunchSpec(run=RunId("other"), pool=A, count=1, token="other-1", expires_at_s=0)]
    )
    fleet.terminate_all()
    (other,) = provider.describe(RunId("other"))
    assert other.state.live
    assert other.instance == InstanceId("i-0002")


class Expiring(FakeProvider):
    """Its callers' credentials expire at `expire_s`, and are renewed at `renewed_s`."""

    clock: Clock
    expire_s = 1010.0
    renewed_s = float("inf")

    def _refuse(self) -> None:
        if self.expire_s <= self.clock.now_s < self.renewed_s:
            raise CloudRefused("EC2 refuses DescribeInstances: RequestExpired: too late")

    def describe(self, run):
        self._refuse()
        return super().describe(run)

    def terminate(self, instances):
        self._refuse()
        return super().terminate(instances)


@pytest.mark.parametrize("renewed_s", [1030.0, float("inf")])
def test_credentials_that_expired_are_waited_for_and_what_may_live_is_named(
    provider, clock, tmp_path, renewed_s
) -> None:
    expiring = Expiring(listed=provider.listed)
    expiring.clock, expiring.renewed_s = clock, renewed_s
    fleet = make_fleet(expiring, clock, tmp_path)
    fleet.ensure(2)
    clock.now_s += 10.0
    told: list[str] = []
    if renewed_s < 1060.0:
        fleet.terminate_all(waiting=told.append)
        assert not any(o.state.live for o in expiring.describe(RUN))
    else:
        with pytest.raises(StillLive) as caught:
            fleet.terminate_all(waiting=told.append)
        assert caught.value.names == "i-0001, i-0002"
        assert clock.now_s - 1010.0 <= 60.0 + 2.0
    (why,) = told
    assert why.endswith("for up to 60 s: EC2 refuses DescribeInstances: RequestExpired: too late")


def test_who_never_could_look_is_refused_at_once(provider, clock, tmp_path) -> None:
    expiring = Expiring(listed=provider.listed)
    expiring.clock, expiring.expire_s = clock, 0.0
    with pytest.raises(CloudRefused):
        make_fleet(expiring, clock, tmp_path).terminate_all()
    assert clock.now_s == 1000.0
