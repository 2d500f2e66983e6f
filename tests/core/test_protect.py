"""Whatever was lost, transfers and moves lead to the assignment aimed at, and end there."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo.core.events import (
    CaughtUp,
    Event,
    HandedOver,
    NoticeReceived,
    ReplicaJoined,
    RunFailed,
    StopReady,
    StopRequested,
    Yielded,
)
from bamboo.core.invariants import check, check_step
from bamboo.core.protect import aim, soon_taken
from bamboo.core.state import NodeStatus, Outcome, Phase, State
from bamboo.ids import NodeId
from tests.core.build import apply, joined, lost, running

ROUNDS = 200
"""Far more transfers and moves than any grid here needs."""


def pending(state: State) -> list[Event]:
    """What honest members may say next."""
    out: list[Event] = [
        CaughtUp(
            node=f.successor, slot=f.slot, step=1, recomputed=0, already_computed=0, pause_s=0.0
        )
        for f in state.failovers
    ]
    out += [
        ReplicaJoined(
            node=t.source, slot=t.slot, receiver=t.receiver, since=t.since, step=2, bytes=1
        )
        for t in state.transfers
    ]
    out += [Yielded(node=m.source, slot=m.slot, since=m.since, step=2) for m in state.moves]
    return out


def settle(state: State, draw: st.DataObject | None = None) -> tuple[State, int]:
    """Let everything under way come to its end, in a drawn order; how many transfers it took."""
    transfers = 0
    for _ in range(ROUNDS):
        events = pending(state)
        if not events:
            return state, transfers
        event = events[0] if draw is None else draw.draw(st.sampled_from(events))
        after = apply(state, event).state
        assert check(after) == []
        assert check_step(state, after) == []
        transfers += isinstance(event, ReplicaJoined)
        state = after
    raise AssertionError(f"it never settles: {state.sentence}")


def protected(state: State) -> None:
    """Every slot has a shadow that is another node, and everything is as aimed at."""
    assert state.assignment is not None
    assert state.assignment == aim(state)
    assert None not in state.assignment.shadows
    assert state.phase is Phase.RUNNING


@settings(max_examples=75, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(2, 6), st.integers(0, 3))
def test_losses_and_standbys_end_at_the_aim(
    data: st.DataObject, pipelines: int, stages: int, standbys: int
) -> None:
    state = running(pipelines, stages)
    for index in range(standbys):
        state = apply(state, joined(f"s{index}.1")).state
    for _ in range(data.draw(st.integers(1, 4))):
        owners = sorted(set(state.assignment.owners)) if state.assignment else []
        if len(state.live_nodes()) < 3:
            break
        state = apply(state, lost(data.draw(st.sampled_from(owners)))).state
        state, _ = settle(state, data)
        protected(state)
    for index in range(data.draw(st.integers(0, 4))):
        state = apply(state, joined(f"t{index}.1", data.draw(st.sampled_from(["z1", "z2"])))).state
        if data.draw(st.booleans()):
            state, _ = settle(state, data)
    state, _ = settle(state, data)
    protected(state)
    assert state.assignment is not None
    counts = [len(state.assignment.owned_by(n.id)) for n in state.live_nodes()]
    full = len(counts) >= state.grid.size
    assert max(counts) == 1 if full else max(counts) - min(counts) <= 1


@pytest.mark.parametrize("pipelines", [1, 2])
def test_a_standby_that_waits_costs_two_transfers_a_loss(pipelines: int) -> None:
    """The least that can be: what the new node must own, and what it must shadow."""
    state = apply(running(pipelines, 4), joined("s.1")).state
    state = apply(state, lost("n01.1")).state
    state, transfers = settle(state)
    protected(state)
    assert transfers == 2
    assert state.assignment is not None
    assert state.assignment.owners[1] == NodeId("s.1")
    assert state.assignment.shadows[1] == NodeId("n00.1")


def test_nothing_begins_while_the_run_ends() -> None:
    state = running()
    state = apply(state, StopRequested(reason="enough", outcome=Outcome.STOPPED)).state
    state = apply(state, lost("n01.1")).state
    assert not state.transfers
    assert not state.moves


def test_the_answer_of_a_lost_node_to_a_stop_is_gone_with_it() -> None:
    """The others agree on a step without it."""
    state = apply(running(), StopRequested(reason="enough", outcome=Outcome.STOPPED)).state
    for number in range(3):
        state = apply(state, StopReady(node=NodeId(f"n0{number}.1"), step=9 - number)).state
    state = apply(state, lost("n00.1")).state
    assert state.stop_ready == ((NodeId("n01.1"), 8), (NodeId("n02.1"), 7))
    assert check(state) == []
    state = apply(state, StopReady(node=NodeId("n03.1"), step=7)).state
    assert state.stop_at_step == 8


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(2, 5), st.integers(0, 2))
def test_what_is_soon_taken_is_taken_and_nothing_else(
    data: st.DataObject, pipelines: int, stages: int, standbys: int
) -> None:
    state = running(pipelines, stages)
    for index in range(standbys):
        state = apply(state, joined(f"s{index}.1")).state
    assert state.assignment is not None
    victim = data.draw(st.sampled_from(state.assignment.owners))
    state = apply(state, lost(victim)).state
    assert state.assignment is not None
    before, owners = state.assignment, sorted(set(state.assignment.owners))
    soon = {slot for node in owners for slot in soon_taken(state, node)}
    assert bool(soon) == bool(standbys)
    settled, _ = settle(state, data)
    assert settled.assignment is not None
    after = settled.assignment
    assert soon == {slot for slot in state.grid.slots() if after.owner(slot) != before.owner(slot)}


def test_a_node_whose_shadow_goes_too_hands_over_to_the_next_one() -> None:
    """A standby is sent the replica, and then the node drains."""
    state = apply(running(), joined("s.1")).state
    for name in ("n00.1", "n01.1"):
        state = apply(state, NoticeReceived(node=NodeId(name), deadline_s=99.0)).state
    leaver, slot = NodeId("n01.1"), state.grid.slots()[1]
    sent = next(t for t in state.transfers if t.slot == slot)
    assert _status(state, leaver) is NodeStatus.MEMBER
    report = ReplicaJoined(
        node=leaver, slot=slot, receiver=sent.receiver, since=sent.since, step=2, bytes=1
    )
    state = apply(state, report).state
    assert _status(state, leaver) is NodeStatus.DRAINING
    state = apply(state, HandedOver(node=leaver, step=3)).state
    assert _status(state, leaver) is NodeStatus.LEFT
    assert state.assignment is not None
    assert state.assignment.owner(slot) == sent.receiver


def _status(state: State, node: NodeId) -> NodeStatus:
    found = state.node(node)
    assert found is not None
    return found.status


def test_what_is_over_is_not_done_again() -> None:
    """Each report counts once, and none of another transfer, move or failover."""
    state = apply(apply(running(), joined("s.1")).state, lost("n02.1")).state
    for _ in range(ROUNDS):
        for event in pending(state):
            for other in ({"since": -1}, {"node": NodeId("n03.1")}, {"node": NodeId("n00.1")}):
                changed = [n for n in other if getattr(event, n, other[n]) != other[n]]
                if changed:
                    wrong = replace(event, **other)  # type: ignore[arg-type]
                    assert apply(state, wrong).state is state
        if not (events := pending(state)):
            return
        state = apply(state, events[0]).state
        assert apply(state, events[0]).state is state
    raise AssertionError("it never settles")


def test_a_run_that_is_over_has_nothing_under_way() -> None:
    state = apply(apply(running(), joined("s.1")).state, lost("n02.1")).state
    failed = RunFailed(reporter="launcher", outcome=Outcome.FAULT, reason="x")
    while events := pending(state):
        over = apply(state, failed).state
        assert (over.failovers, over.transfers, over.moves) == ((), (), ())
        assert check(over) == []
        state = apply(state, events[-1]).state


def test_who_has_another_slot_now_has_not_finished() -> None:
    state = apply(apply(running(), joined("s.1")).state, lost("n02.1")).state
    while not state.moves:
        state = apply(state, pending(state)[0]).state
    move, other = state.moves[0], NodeId("n00.1")
    assert other not in (move.source, move.receiver)
    state = replace(state, finished=(move.source, other))
    event = Yielded(node=move.source, slot=move.slot, since=move.since, step=2)
    assert apply(state, event).state.finished == (other,)
