"""Each invariant turns red on a state that breaks it alone; sound states are silent."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bamboo.core.events import (
    Event,
    FaultScope,
    NoticeReceived,
    Reconsider,
    RunFailed,
    Stalled,
    StopRequested,
    StrategyProposed,
    StrategyReady,
)
from bamboo.core.invariants import check, check_cause, check_step
from bamboo.core.state import (
    Move,
    NodeStatus,
    Outcome,
    Phase,
    Proposal,
    State,
    SyncChoice,
    Transfer,
)
from bamboo.ids import NodeId, run_id
from bamboo.topology.grid import Grid
from tests.core.build import apply, failed, forming, joined, lost, prepared_by, running
from tests.core.test_next_layout import growing, said
from tests.core.test_reconfiguration import resumed

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


def stopping() -> State:
    """All stop to go on in another layout."""
    state, policy = growing()
    return said(state, policy, Stalled(node=NodeId("a"), era=state.era, step=3, reason="x"))


def sending(**changes: object) -> State:
    """One that is sent what it will hold, with changes of what is being sent."""
    state, _ = growing()
    assert state.preparing is not None
    return replace(state, preparing=replace(state.preparing, **changes))  # type: ignore[arg-type]


def first_feed(**changes: object) -> State:
    preparing = growing()[0].preparing
    assert preparing is not None
    feed = replace(preparing.feeds[0], **changes)  # type: ignore[arg-type]
    return sending(feeds=(feed, *preparing.feeds[1:]))


def with_transfer(to: NodeId, source: NodeId = N0) -> State:
    """The first slot is sent to a node."""
    slot = running().grid.slots()[0]
    item = Transfer(slot=slot, source=source, receiver=to, since=1)
    return replace(running(), transfers=(item,))


def with_move(to: NodeId, source: NodeId = N0) -> State:
    item = Move(slot=running().grid.slots()[0], source=source, receiver=to, since=1)
    return replace(running(), moves=(item,))


def asked(*ready: NodeId) -> State:
    """All are asked about a strategy, and these have answered."""
    state = apply(running(), StrategyProposed(reporter="launcher", hash="h", why="x")).state
    for node in ready:
        assert state.proposal is not None
        since = state.proposal.since
        state = apply(state, StrategyReady(node=node, since=since, begun=7, oldest=6)).state
    return state


def with_proposal(state: State, *ready: NodeId) -> State:
    return replace(state, proposal=Proposal(since=1, hash="h", why="x", ready=ready))


FAILOVER = replace(failing().failovers[0], slot=running().grid.slots()[0])

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
    ("reconfiguring without", lambda: replace(running(), phase=Phase.RECONFIGURING)),
    ("restoring without", lambda: replace(running(), phase=Phase.RESTORING)),
    ("running with a reconf", lambda: replace(stopping(), phase=Phase.RUNNING)),
    (
        "of the old layout goes on",
        lambda: replace(stopping(), transfers=with_transfer(N2).transfers),
    ),
    ("of the old layout goes on", lambda: replace(stopping(), moves=with_move(N3).moves)),
    ("of the old layout goes on", lambda: replace(stopping(), failovers=(FAILOVER,))),
    (
        "a stop is being agreed that nobody",
        lambda: replace(running(), stop_ready=((N0, 1),)),
    ),
    ("to x goes to a node that is not live", lambda: with_transfer(NodeId("x"))),
    ("has a source that does not own it", lambda: with_transfer(N2, source=N1)),
    ("has a source that does not own it", lambda: with_move(N3, source=N1)),
    ("moves to n02.1, which does not shadow it", lambda: with_move(N2)),
    ("is sent to n03.1, which has it", lambda: with_transfer(N3)),
    ("a transfer without an assignment", lambda: replace(with_transfer(N2), assignment=None)),
    ("while something else is under way", lambda: replace(growing()[0], stop_reason="x")),
    (
        "while something else is under way",
        lambda: replace(stopping(), preparing=growing()[0].preparing),
    ),
    ("while something else is under way", lambda: replace(growing()[0], assignment=None)),
    ("is itself the source", lambda: first_feed(source=NodeId("c"))),
    ("is itself the source", lambda: first_feed(receiver=NodeId("a"), source=NodeId("a"))),
    ("the prefetch to x goes to a node that is not live", lambda: first_feed(receiver=NodeId("x"))),
    ("all have what they prefetch", lambda: sending(prepared=((NodeId("c"), 1),) * 2)),
    ("all have what they prefetch", lambda: sending(prepared=((NodeId("x"), 1),))),
    (
        "all have what they prefetch",
        lambda: sending(prepared=tuple((NodeId(n), 1) for n in "cd")),
    ),
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
    ("agreed on while something else", lambda: with_proposal(stopping())),
    ("agreed on while something else", lambda: with_proposal(failing())),
    ("all have the strategy", lambda: with_proposal(running(), N0, N0)),
    ("all have the strategy", lambda: with_proposal(running(), N0, N1, N2, N3)),
    ("all have the strategy", lambda: with_proposal(running(), NodeId("x"))),
]


@pytest.mark.parametrize(("says", "broken"), BROKEN, ids=[says for says, _ in BROKEN])
def test_a_broken_state_is_named(says: str, broken: Callable[[], State]) -> None:
    assert any(says in sentence for sentence in check(broken())), check(broken())


def test_sound_states_are_silent() -> None:
    told = apply(running(), NoticeReceived(node=N2, deadline_s=9.0)).state
    stopped = apply(running(), StopRequested(reason="x", outcome=Outcome.STOPPED)).state
    ended = apply(failing(), lost(N1)).state
    assert ended.outcome is Outcome.UNRECOVERABLE
    sound = (forming(), running(), running(2, 2, "off"), failing(), told, stopped, ended)
    growth, policy = growing()
    half = said(growth, policy, prepared_by(growth, NodeId("c")))
    for state in (
        *sound,
        resumed("off"),
        stopping(),
        growth,
        half,
        with_transfer(N2),
        with_move(N3),
        asked(N0, N1),
    ):
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


CHOICES: list[tuple[str, Callable[[SyncChoice], tuple[SyncChoice, ...]]]] = [
    ("two strategies count from one step", lambda new: (new, new)),
    ("that nobody proposed", lambda new: (replace(new, hash="other"),)),
    ("another number than the next", lambda new: (replace(new, number=2),)),
    ("which a node has begun", lambda new: (replace(new, from_step=8),)),
    ("has another strategy now", lambda new: (replace(new, hash="g", from_step=6), new)),
]


@pytest.mark.parametrize(("says", "spoil"), CHOICES, ids=[says for says, _ in CHOICES])
def test_a_broken_choice_is_named(
    says: str, spoil: Callable[[SyncChoice], tuple[SyncChoice, ...]]
) -> None:
    before, after = asked(N0, N1, N2), asked(N0, N1, N2, N3)
    assert check_step(before, after) == []
    spoiled = replace(after, syncs=spoil(after.syncs[-1]))
    assert any(says in sentence for sentence in check_step(before, spoiled))


def test_another_layout_is_another_era() -> None:
    before = failing()
    after = apply(before, joined("extra.1")).state
    cut = (0, 1, 2, 3, 4)
    assert after.era < after.generation
    for other in ({"shares": (4,)}, {"cut": cut}, {"grid": Grid(pipelines=2, stages=2)}):
        changed = replace(after, **other)  # type: ignore[arg-type]
        assert check_step(before, changed) == ["the layout changes without a new era"]
        assert check_step(before, replace(changed, era=after.generation)) == []


def test_what_went_stays_away() -> None:
    before = failing()
    assert check_step(before, before) == []
    back = with_node(replace(before, version=before.version + 1), N2, status=NodeStatus.MEMBER)
    assert "node n02.1 was gone and is member" in check_step(before, back)
    over = apply(before, lost(N1)).state
    again = replace(over, version=over.version + 1, phase=Phase.RUNNING)
    assert "a finished run is running again" in check_step(over, again)


ENDS: list[tuple[State, Event, bool]] = [
    (running(), failed("n00.1", FaultScope.RUN), True),
    (apply(running(), joined("x.1")).state, failed("x.1", FaultScope.RUN), False),
    (running(), failed("new.1", FaultScope.RUN), False),
    (forming(), failed("new.1", FaultScope.RUN), True),
    (running(), RunFailed(reporter="n00.1", outcome=Outcome.FAULT, reason="x"), True),
    (running(), RunFailed(reporter="launcher", outcome=Outcome.FAULT, reason="x"), True),
    (
        apply(running(), joined("x.1")).state,
        RunFailed(reporter="x.1", outcome=Outcome.FAULT, reason="x"),
        False,
    ),
    (apply(running(), joined("x.1")).state, Reconsider(reporter="x.1", reason="x"), True),
]


@pytest.mark.parametrize(("before", "event", "may"), ENDS)
def test_only_who_owns_a_slot_ends_a_run(before: State, event: Event, may: bool) -> None:
    over = replace(before, phase=Phase.FINISHED, outcome=Outcome.FAULT)
    assert (check_cause(before, event, over) == []) is may
    assert check_cause(before, event, before) == []
    assert check_cause(over, event, over) == []
