"""Each invariant turns red on a state that breaks it alone; sound states are silent."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bamboo.core.events import NoticeReceived, StopRequested
from bamboo.core.invariants import check, check_step
from bamboo.core.state import NodeStatus, Outcome, Phase, State
from bamboo.ids import NodeId, run_id
from bamboo.topology.grid import Grid
from tests.core.build import apply, forming, joined, lost, running

N0, N1, N2, N3 = (NodeId(f"n0{i}.1") for i in range(4))


def with_node(state: State, node: NodeId, **changes: object) -> State:
    nodes = tuple(replace(n, **changes) if n.id == node else n for n in state.nodes)  # type: ignore[arg-type]
    return replace(state, nodes=nodes)


def with_places(
    state: State, owners: dict[int, NodeId], shadows: dict[int, NodeId | None]
) -> State:
    assert state.assignment is not None
    slots = state.grid.slots()
    return replace(
        state,
        assignment=state.assignment.replace(
            owners={slots[i]: node for i, node in owners.items()},
            shadows={slots[i]: node for i, node in shadows.items()},
        ),
    )


def failing() -> State:
    return apply(running(), lost(N2)).state


BROKEN: list[tuple[str, Callable[[], State]]] = [
    ("two nodes have one id", lambda: replace(running(), nodes=running().nodes * 2)),
    ("generation 0 does not fit", lambda: replace(running(), generation=0)),
    ("forming with an assignment", lambda: replace(running(), phase=Phase.FORMING)),
    ("running without an assignment", lambda: replace(forming(), phase=Phase.RUNNING)),
    ("for another grid", lambda: replace(running(), grid=Grid(pipelines=2, stages=2))),
    ("to be given back and no new layout", lambda: with_node(running(), N1, released=True)),
    ("outcome done while running", lambda: replace(running(), outcome=Outcome.DONE)),
    ("outcome None while finished", lambda: replace(running(), phase=Phase.FINISHED)),
    ("both reason and outcome", lambda: replace(running(), stop_reason="x")),
    ("that nobody asked for", lambda: replace(running(), stop_at_step=4)),
    (
        "was stopped and says done",
        lambda: replace(
            running(),
            phase=Phase.FINISHED,
            outcome=Outcome.DONE,
            stop_reason="x",
            stop_outcome=Outcome.STOPPED,
            stop_at_step=3,
        ),
    ),
    ("owned by n00.1, which is no live", lambda: with_node(running(), N0, status=NodeStatus.GONE)),
    ("owned by n00.1, which is no live", lambda: with_node(running(), N0, status=NodeStatus.READY)),
    ("shadowed by x, which is no live", lambda: with_places(running(), {}, {0: NodeId("x")})),
    ("owned and shadowed by n01.1", lambda: with_places(running(), {}, {1: N1})),
    ("although redundancy is off", lambda: replace(running(), redundancy="off")),
    ("is a member and holds nothing", lambda: with_places(running(), {0: N1}, {1: None})),
    ("drains without a notice", lambda: with_node(running(), N0, status=NodeStatus.DRAINING)),
    (
        "drains and has nobody to hand over to",
        lambda: with_node(failing(), N1, status=NodeStatus.DRAINING, notice_deadline_s=9.0),
    ),
    ("two failovers of one slot", lambda: replace(failing(), failovers=failing().failovers * 2)),
    ("a successor that does not own it", lambda: with_places(failing(), {2: N0}, {})),
    ("is sent to n00.1, which has it", lambda: with_places(failing(), {}, {2: N0})),
    ("has a source that does not own it", lambda: with_places(failing(), {3: N0}, {})),
    ("two transfers or moves", lambda: replace(failing(), transfers=failing().transfers * 2)),
    ("a victim that is not gone", lambda: with_node(failing(), N2, status=NodeStatus.MEMBER)),
    ("the phase is running, not failing_over", lambda: replace(failing(), phase=Phase.RUNNING)),
    ("the phase is running, not degraded", lambda: with_places(running(), {}, {0: None})),
    ("the phase is degraded, not running", lambda: replace(running(), phase=Phase.DEGRADED)),
    ("has finished, or twice", lambda: replace(running(), finished=(N0, N0))),
    ("has finished, or twice", lambda: replace(running(), finished=(NodeId("x"),))),
    ("while its failover is under way", lambda: replace(failing(), finished=(N1,))),
    ("every owner has finished", lambda: replace(running(), finished=(N0, N1, N2, N3))),
    (
        "answered by a node that is no live member",
        lambda: replace(
            running(),
            stop_reason="x",
            stop_outcome=Outcome.STOPPED,
            stop_ready=((NodeId("x"), 1),),
        ),
    ),
    (
        "every member is ready to stop",
        lambda: replace(
            running(),
            stop_reason="x",
            stop_outcome=Outcome.STOPPED,
            stop_ready=((N0, 1), (N1, 1), (N2, 1), (N3, 1)),
        ),
    ),
]


@pytest.mark.parametrize(("says", "broken"), BROKEN, ids=[says for says, _ in BROKEN])
def test_a_broken_state_is_named(says: str, broken: Callable[[], State]) -> None:
    assert any(says in sentence for sentence in check(broken())), check(broken())


def test_sound_states_are_silent() -> None:
    told = apply(running(), NoticeReceived(node=N2, deadline_s=9.0)).state
    stopped = apply(running(), StopRequested(reason="x", outcome=Outcome.STOPPED)).state
    ended = apply(failing(), lost(N1)).state
    assert ended.outcome is Outcome.UNRECOVERABLE
    for state in (forming(), running(), running(2, 2, "off"), failing(), told, stopped, ended):
        assert check(state) == []


STEPS: list[tuple[str, Callable[[State], State]]] = [
    ("version goes from 4 to 6", lambda after: replace(after, version=6)),
    ("generation goes from 1 to 0", lambda after: replace(after, generation=0)),
    ("generation goes from 1 to 3", lambda after: replace(after, generation=3)),
    ("the change has no reason", lambda after: replace(after, sentence="")),
    (
        "the assignment changes without a new generation",
        lambda after: with_places(after, {}, {0: None}),
    ),
    ("run or redundancy changes", lambda after: replace(after, run=run_id("other"))),
    ("node n00.1 is forgotten", lambda after: replace(after, nodes=after.nodes[1:])),
]


@pytest.mark.parametrize(("says", "spoil"), STEPS, ids=[says for says, _ in STEPS])
def test_a_broken_step_is_named(says: str, spoil: Callable[[State], State]) -> None:
    before = running()
    after = apply(before, joined("extra.1")).state
    assert check_step(before, after) == []
    assert says in check_step(before, spoil(after))


def test_what_went_stays_away() -> None:
    before = failing()
    assert check_step(before, before) == []
    back = with_node(replace(before, version=before.version + 1), N2, status=NodeStatus.MEMBER)
    assert "node n02.1 was gone and is member" in check_step(before, back)
    over = apply(before, lost(N1)).state
    again = replace(over, version=over.version + 1, phase=Phase.RUNNING)
    assert "a finished run is running again" in check_step(over, again)
