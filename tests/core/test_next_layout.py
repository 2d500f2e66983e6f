"""What is sent ahead of a new layout is what it will need: nobody lacks anything once all stop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.core.events import (
    BoundaryReady,
    Event,
    LayoutBuilt,
    NoticeReceived,
    Quiesced,
    Reconsider,
    StopRequested,
)
from bamboo.core.liveness.patience import AHEAD, Patience
from bamboo.core.machine import transition
from bamboo.core.next_layout import layers_by_node
from bamboo.core.state import Holding, Outcome, Policy, State
from bamboo.ids import NodeId
from tests.core.build import forming, joined, lost, prepared, prepared_by
from tests.core.test_protect import settle

LAYERS = 24
STEP = 7


def policy_of(stages: int) -> Policy:
    cuts = tuple(tuple(s * LAYERS // n for s in range(n + 1)) for n in range(2, stages + 1))
    return Policy(cuts=cuts, virtual_nodes=8, pipelines=4, stages=stages)


def said(state: State, policy: Policy, *events: Event) -> State:
    for event in events:
        state = transition(state, event, now_s=1.0, policy=policy).state
    return state


def held_by(state: State, policy: Policy) -> dict[NodeId, set[int]]:
    """What members hold by their slots."""
    assert state.assignment is not None
    cut = state.cut or policy.cut_for(state.grid.stages)
    return {n: set(layers) for n, layers in layers_by_node(state.assignment, cut).items()}


def all_stop(state: State, policy: Policy, held: dict[NodeId, set[int]]) -> State:
    """From the beginning of a planned reconfiguration to its base."""
    assert state.reconfiguration is not None
    since, asked = state.reconfiguration.since, state.reconfiguration.asked
    for feed in () if state.reconfiguration.ahead is None else state.reconfiguration.ahead.feeds:
        held.setdefault(feed.receiver, set()).update(feed.layers)
    state = said(state, policy, *(BoundaryReady(node=n, since=since, step=STEP) for n in asked))
    for node in asked:
        holdings = tuple(
            Holding(first=x, stop=x + 1, step=STEP + 1, reach=STEP + 1)
            for x in sorted(held.get(node, ()))
        )
        event = Quiesced(node=node, since=since, holdings=holdings, norms=())
        state = said(state, policy, event)
    return state


@given(
    pipelines=st.integers(1, 3),
    stages=st.integers(2, 5),
    redundancy=st.sampled_from(["stash", "peer", "off"]),
    more=st.integers(1, 8),
    zones=st.integers(1, 2),
)
def test_a_grown_run_lacks_nothing_once_all_have_stopped(
    pipelines: int, stages: int, redundancy: str, more: int, zones: int
) -> None:
    policy = policy_of(stages)
    state = forming(pipelines, stages, redundancy)
    names = [f"n{i:02}.1" for i in range(pipelines * stages + more)]
    for number, name in enumerate(names):
        state = said(state, policy, joined(name, f"z{number % zones}"))
    held = held_by(state, policy)
    if pipelines == 4 or more < stages:
        assert state.preparing is None
        return
    assert state.preparing is not None
    assert state.reconfiguration is None
    for feed in state.preparing.feeds:
        assert not held.get(feed.receiver, set()).intersection(feed.layers), "it has that"
        assert held[feed.source].issuperset(feed.layers)
    state = all_stop(said(state, policy, *prepared(state)), policy, held)
    assert state.grid.pipelines > pipelines
    for node, layers in held_by(state, policy).items():
        assert held[node] >= layers


@given(stages=st.integers(3, 6), redundancy=st.sampled_from(["stash", "eager"]), gone=st.data())
def test_a_run_that_is_cut_anew_lacks_nothing(
    stages: int, redundancy: str, gone: st.DataObject
) -> None:
    """A node goes for good; its work is cut among the others; later another one comes."""
    policy = policy_of(stages)
    state = forming(1, stages, redundancy)
    names = [f"n{i:02}.1" for i in range(stages)]
    state = said(state, policy, *(joined(name) for name in names))
    state, _ = settle(said(state, policy, lost(gone.draw(st.sampled_from(names)))))
    events: list[Event] = [Reconsider(reporter="x", reason="no node came"), joined("z9.1")]
    for count, event in zip((stages - 1, stages), events, strict=True):
        held = held_by(state, policy)
        state = said(state, policy, event)
        state = all_stop(said(state, policy, *prepared(state)), policy, held)
        assert state.grid.stages == count
        for node, layers in held_by(state, policy).items():
            assert held[node] >= layers
        assert state.reconfiguration is not None
        since = state.reconfiguration.since
        built = [LayoutBuilt(node=n, since=since, bytes=0) for n in held_by(state, policy)]
        state = said(state, policy, *built)
        assert state.reconfiguration is None


def growing() -> tuple[State, Policy]:
    """Two of four nodes are sent what they will hold."""
    policy = policy_of(2)
    return said(forming(1, 2, "peer"), policy, *(joined(n) for n in "abcd")), policy


def test_everybody_hears_those_who_are_sent_state() -> None:
    state, _ = growing()
    assert state.participants() == {NodeId(n) for n in "abcd"}
    assert state.generation == 2, "who takes part is another set than before"


@pytest.mark.parametrize(
    "event",
    [lost("b"), StopRequested(reason="enough", outcome=Outcome.STOPPED)],
    ids=["loss", "stop"],
)
def test_it_is_over_when_anything_else_is_under_way(event: Event) -> None:
    state, policy = growing()
    state = said(state, policy, event)
    assert state.preparing is None


def test_who_is_patient_long_enough_lets_all_stop_as_it_is() -> None:
    state, policy = growing()
    patience = Patience(patience_s=3.0, park_s=60.0)
    assert patience.due(state, now_s=1.0) is None
    assert patience.due_at_s(state) == 1.0 + AHEAD * 3.0
    state = said(state, policy, prepared_by(state, NodeId("c")))
    assert patience.due(state, now_s=30.9) is None
    event = patience.due(state, now_s=31.0)
    assert event is not None
    patience.said(event, state)
    assert patience.due(state, now_s=32.0) is None
    held = held_by(state, policy)
    state = said(state, policy, event)
    assert state.reconfiguration is not None
    assert state.reconfiguration.ahead is not None
    assert state.reconfiguration.ahead.receivers == {NodeId("c")}
    state = all_stop(state, policy, held)
    assert state.reconfiguration is not None
    assert state.grid.pipelines == 2
    assert state.reconfiguration.base == STEP + 1


def test_what_is_dropped_and_prepared_again_is_one_wait() -> None:
    """Else a run that loses a node now and then would be sent the same bytes for ever."""
    state, policy = growing()
    patience = Patience(patience_s=3.0, park_s=60.0)
    assert patience.due(state, now_s=1.0) is None
    hurt = said(state, policy, lost("c"), joined("e"))
    failing = said(state, policy, lost("b"))
    assert failing.preparing is None
    assert patience.due(failing, now_s=20.0) is None
    assert patience.due_at_s(failing) is None or patience.due_at_s(failing) > 20.0
    assert hurt.preparing is not None
    assert isinstance(patience.due(hurt, now_s=31.0), Reconsider)


def test_a_preparation_that_patience_began_is_not_waited_for_for_ever_either() -> None:
    policy = policy_of(4)
    names = [f"n{i}.1" for i in range(4)]
    state = said(forming(1, 4, "stash"), policy, *(joined(name) for name in names))
    state, _ = settle(said(state, policy, lost("n1.1")))
    patience = Patience(patience_s=3.0, park_s=60.0)
    assert patience.due(state, now_s=1.0) is None
    event = patience.due(state, now_s=4.0)
    assert isinstance(event, Reconsider)
    patience.said(event, state)
    state = said(state, policy, event)
    assert state.preparing is not None
    assert patience.due(state, now_s=5.0) is None
    again = patience.due(state, now_s=5.0 + AHEAD * 3.0)
    assert isinstance(again, Reconsider)
    state = said(state, policy, again)
    assert state.reconfiguration is not None
    assert state.reconfiguration.forced, "as it was asked for"


def test_another_planned_layout_that_comes_first_counts_what_was_sent() -> None:
    state, policy = growing()
    assert state.preparing is not None
    state = said(state, policy, prepared_by(state, NodeId("c")))
    event = NoticeReceived(node=NodeId("a"), deadline_s=99.0)
    state = said(state, policy, event)
    assert state.reconfiguration is not None
    assert state.reconfiguration.ahead is not None
    assert state.reconfiguration.ahead.receivers == {NodeId("c")}
