"""What instances are there for, by real decisions, and what a restore has to be done again."""

from dataclasses import replace

import pytest

from bamboo.billing.run_cost import last_duties
from bamboo.core.events import (
    CaughtUp,
    Event,
    ReplicaJoined,
    ShardSaved,
)
from bamboo.core.machine import transition
from bamboo.core.state import (
    Checkpoint,
    Holding,
    Outcome,
    Phase,
    Policy,
    Reconfiguration,
    Report,
    State,
)
from bamboo.ids import InstanceId, NodeId
from bamboo.planner.duties import Duty, DutyChange, Roster, Span, duties_of
from bamboo.topology.slots import Slot
from tests.core.build import POLICY, forming, joined, lost, running


class Told:
    """A roster that is told of real decisions, and the state of now."""

    def __init__(self, state: State, policy: Policy = POLICY) -> None:
        self.state, self.policy, self.roster = state, policy, Roster()

    def say(self, event: Event, at_s: float) -> None:
        before = self.state
        self.state = transition(before, event, now_s=at_s, policy=self.policy).state
        if self.state is not before:
            self.roster.decided(before, self.state, event, at_s)

    def become(self, at_s: float, **change: object) -> None:
        """As though that had been decided."""
        before, self.state = self.state, replace(self.state, **change)  # type: ignore[arg-type]
        self.roster.decided(before, self.state, joined("n99.1"), at_s)

    def again(self) -> list[Span]:
        return [one.again for one in self.roster.changes() if one.again is not None]


def named(change: DutyChange) -> dict[str, str]:
    return {taken.instance: taken.duty.value for taken in change.changed}


def test_from_forming_to_the_end() -> None:
    told = Told(forming(stages=2))
    for number, at_s in ((0, 1.0), (1, 2.0), (2, 3.0)):
        told.say(joined(f"n0{number}.1"), at_s)
    told.say(lost("n01.1", "n00.1"), 10.0)
    told.say(
        CaughtUp(
            node=NodeId("n00.1"), slot=Slot(pipeline=0, stage=1), step=4, recomputed=0,
            already_computed=0, pause_s=0.1,
        ),
        11.0,
    )  # fmt: skip
    first, formed, standby, hit, on = told.roster.changes()
    assert named(first) == {"n00": "forming"}
    assert named(formed) == {"n00": "steps", "n01": "steps"}
    assert named(standby) == {"n02": "standby"}
    assert named(hit) == {"n00": "recovery", "n01": "leaving", "n02": "recovery"}
    assert (hit.lost, hit.at_s) == ((InstanceId("n01"),), 10.0)
    assert named(on) == {"n00": "steps"}
    told.become(20.0, phase=Phase.FINISHED, outcome=Outcome.DONE)
    assert last_duties(told.roster.changes()) == {
        InstanceId("n00"): (Duty.LEAVING, 20.0),
        InstanceId("n01"): (Duty.LEAVING, 10.0),
        InstanceId("n02"): (Duty.LEAVING, 20.0),
    }
    assert told.again() == []


def test_a_replica_across_zones_is_counted() -> None:
    told = Told(forming(stages=2))
    for number, zone in enumerate(("a", "a", "b")):
        told.say(joined(f"n0{number}.1", zone), float(number))
    joined_replica = ReplicaJoined(
        node=NodeId("n00.1"), slot=Slot(pipeline=0, stage=0), receiver=NodeId("n02.1"), since=1,
        step=1, bytes=1000,
    )  # fmt: skip
    told.roster.decided(told.state, told.state, joined_replica, 9.0)
    assert told.roster.changes()[-1].crossed_bytes == 1000


def reconfiguration_of(state: State, **change: object) -> Reconfiguration:
    live = tuple(node.id for node in state.live_nodes())
    given = {"since": 9, "why": "x", "planned": False, "intact": False, "asked": live}
    return Reconfiguration(**{**given, **change})  # type: ignore[arg-type]


def test_a_reconfiguration_holds_up_those_who_have_stopped() -> None:
    state = running(stages=2)
    planned = replace(
        state, phase=Phase.RECONFIGURING, reconfiguration=reconfiguration_of(state, planned=True)
    )
    assert set(duties_of(planned).values()) == {Duty.STEPS}, "they finish the step first"
    stopped = replace(state, phase=Phase.RECONFIGURING, reconfiguration=reconfiguration_of(state))
    assert set(duties_of(stopped).values()) == {Duty.RECOVERY}
    said = tuple(
        Report(node=node.id, holdings=(Holding(first=0, stop=9, step=3, reach=3),), norms=())
        for node in stopped.live_nodes()
    )
    waiting = replace(stopped, reconfiguration=reconfiguration_of(state, reports=said))
    assert set(duties_of(waiting).values()) == {Duty.PARKED}, "nobody can begin without more"


def restored(told: Told, *, base: int, stood_s: float, on_s: float) -> None:
    """All stop, and go on from `base` as a checkpoint has it."""
    reconfiguration = reconfiguration_of(told.state, base=base, checkpoint=True)
    told.become(stood_s, reconfiguration=reconfiguration, phase=Phase.RESTORING)
    told.become(on_s, reconfiguration=None, phase=Phase.RUNNING)


def test_what_a_restore_takes_back_began_when_the_run_stood_there_last() -> None:
    told = Told(forming(stages=2))
    told.say(joined("n00.1"), 0.0)
    told.say(joined("n01.1"), 1.0)
    for steps in range(1, 8):
        told.roster.stepped(steps, 10.0 * steps)
    restored(told, base=4, stood_s=75.0, on_s=80.0)
    told.roster.stepped(5, 90.0)
    told.roster.stepped(6, 100.0)
    restored(told, base=5, stood_s=105.0, on_s=110.0)  # done twice: the second time counts
    restored(told, base=5, stood_s=118.0, on_s=120.0)  # not even a step since
    restored(told, base=0, stood_s=130.0, on_s=140.0)
    assert told.again() == [
        Span(since_s=40.0, until_s=75.0),
        Span(since_s=90.0, until_s=105.0),
        Span(since_s=110.0, until_s=118.0),
        Span(since_s=0.0, until_s=130.0),
    ]


def test_a_step_that_was_taken_back_tells_nothing_of_the_second_time() -> None:
    told = Told(running(stages=2))
    for steps in range(1, 8):
        told.roster.stepped(steps, 10.0 * steps)
    restored(told, base=4, stood_s=75.0, on_s=80.0)
    restored(told, base=6, stood_s=105.0, on_s=110.0)  # nobody said when it was done again
    assert told.again() == [Span(since_s=40.0, until_s=75.0)]


def test_times_of_steps_may_come_after_the_decisions() -> None:
    told = Told(running(stages=2))
    restored(told, base=2, stood_s=50.0, on_s=60.0)
    assert told.again() == [], "nobody knows"
    told.roster.stepped(2, 20.0)
    assert told.again() == [Span(since_s=20.0, until_s=50.0)]
    assert told.roster.changes(after=1)[0].number == 1


def test_where_no_step_was_timed_the_first_part_of_the_checkpoint_tells() -> None:
    policy = Policy(suspect_s=1.0, gone_s=3.0, checkpoint_every=2)
    told = Told(running(stages=2), policy)
    for stage, at_s in ((1, 21.0), (0, 22.0)):
        told.say(
            ShardSaved(node=NodeId(f"n0{stage}.1"), step=2, era=told.state.era, stage=stage), at_s
        )
    restored(told, base=2, stood_s=50.0, on_s=60.0)
    assert told.again() == [Span(since_s=21.0, until_s=50.0)]


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        (Outcome.UNRECOVERABLE, [Span(since_s=30.0, until_s=99.0)]),
        (Outcome.FAULT, [Span(since_s=30.0, until_s=99.0)]),
        (Outcome.DONE, []),
        (Outcome.STOPPED, []),
    ],
)
def test_an_end_that_leaves_nothing_loses_what_no_checkpoint_has(
    outcome: Outcome, found: list[Span]
) -> None:
    state = replace(running(stages=2), checkpoints=(Checkpoint(step=3, era=0),))
    told = Told(state)
    told.roster.stepped(3, 30.0)
    told.become(99.0, phase=Phase.FINISHED, outcome=outcome)
    assert told.again() == found


def test_a_later_part_takes_back_what_its_checkpoint_does_not_have() -> None:
    roster = Roster()
    roster.stepped(3, 30.0)
    roster.stepped(4, 40.0)
    roster.resumed(3, 1000.0)
    assert [one.again for one in roster.changes()] == [Span(since_s=30.0, until_s=1000.0)]
    whole = Roster()
    whole.stepped(4, 40.0)
    whole.resumed(4, 1000.0, whole=True)
    assert [one.again for one in whole.changes()] == [None], "nobody had begun the next step"
    anew = Roster()
    anew.resumed(0, 1000.0)
    assert [one.again for one in anew.changes()] == [Span(since_s=0.0, until_s=1000.0)]
