"""Events of one time lead where they lead one after the other, to the message."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo.core.effects import Effect
from bamboo.core.events import (
    BoundaryReady,
    Event,
    LayoutBuilt,
    Quiesced,
    Stalled,
)
from bamboo.core.machine import transition
from bamboo.core.state import Holding, Phase, Policy, State, initial_state
from bamboo.core.together import transitions
from bamboo.core.transition import Transition
from bamboo.ids import NodeId, run_id
from bamboo.topology.grid import Grid
from tests.core.build import joined, lost, prepared

POLICY = Policy(
    cuts=((0, 2, 4), (0, 1, 2, 4)), virtual_nodes=4, pipelines=2, stages=3, checkpoint_every=1
)
NODES = [NodeId(f"n{number}.1") for number in range(8)]
"""The last one never joins."""


def one_by_one(state: State, events: list[Event]) -> Transition:
    effects: list[Effect] = []
    reasons = {True: "", False: ""}
    before = state
    for event in events:
        decided = transition(state, event, now_s=1.0, policy=POLICY)
        reasons[decided.state is not state] = decided.reason
        effects += decided.effects
        state = decided.state
    reason = reasons[state is not before]
    return Transition(state=state, effects=tuple(effects), reason=reason)


def together(state: State, events: list[Event]) -> Transition:
    return transitions(state, events, now_s=1.0, policy=POLICY)


def stopping(*, planned: bool) -> State:
    """Six nodes that are asked to stop, as there are enough for a second pipeline or as nothing
    comes any more, and a seventh that comes later."""
    state = initial_state(run=run_id("test"), grid=Grid(pipelines=1, stages=3), redundancy="stash")
    coming: list[Event] = [joined(node) for node in NODES[:6]]
    if not planned:
        stalled = Stalled(node=NODES[0], era=1, step=1, reason="nothing comes")
        coming = [*coming[:3], stalled, *coming[3:]]
    state = one_by_one(state, coming).state
    state = one_by_one(state, [*prepared(state), joined(NODES[6])]).state
    assert state.reconfiguration is not None
    assert state.reconfiguration.planned is planned
    return state


@st.composite
def answers_of_all(draw: st.DrawFn, since: int) -> list[Event]:
    """Everybody's, in any order, question by question, with some too many, some missing, and now
    and then somebody who is lost."""
    events: list[Event] = []
    for kind in ("ready", "stopped", "built"):
        speakers = draw(st.permutations(NODES))
        more = draw(st.lists(st.sampled_from(NODES), max_size=2))
        fewer = draw(st.sets(st.sampled_from(NODES[5:])))
        round_ = draw(st.sampled_from([since] * 9 + [since + 1]))
        said = [answer(kind, node, round_) for node in (*speakers, *more) if node not in fewer]
        if draw(st.integers(0, 3)) == 0:
            said.insert(draw(st.integers(0, len(said))), lost(draw(st.sampled_from(NODES))))
        events += said
    return events


def answer(kind: str, node: NodeId, since: int) -> Event:
    if kind == "ready":
        return BoundaryReady(node=node, since=since, step=NODES.index(node) % 2)
    if kind == "built":
        return LayoutBuilt(node=node, since=since, bytes=NODES.index(node))
    at = NODES.index(node)
    held = (Holding(first=at, stop=at + 1, step=2, reach=2),) if at < 3 else ()
    return Quiesced(node=node, since=since, holdings=held, norms=())


@settings(deadline=None, max_examples=100)
@given(st.data(), st.booleans())
def test_together_is_one_after_the_other(data: st.DataObject, planned: bool) -> None:
    state = stopping(planned=planned)
    assert state.reconfiguration is not None
    events = data.draw(answers_of_all(state.reconfiguration.since))
    cut = data.draw(st.integers(0, len(events)))
    for some in (events[:cut], events[cut:]):
        expected = one_by_one(state, some)
        assert together(state, some) == expected
        state = expected.state


def test_all_answers_lead_to_the_new_layout() -> None:
    """As a check that the drawn ones come that far: nobody is missing here, and nobody lost."""
    state = stopping(planned=True)
    assert state.reconfiguration is not None
    since = state.reconfiguration.since
    for kind, effects in (("ready", 6), ("stopped", 0), ("built", 6)):
        decided = together(state, [answer(kind, node, since) for node in NODES[:6]])
        assert len(decided.effects) == effects
        assert decided.state.version == state.version + 6
        state = decided.state
    assert state.phase is Phase.RUNNING
    assert state.grid == Grid(pipelines=2, stages=3)


def test_many_answers_take_few_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are noted at once, whatever is asked; only the last two are decided alone."""
    state = stopping(planned=True)
    assert state.reconfiguration is not None
    since, decided = state.reconfiguration.since, list[Event]()

    def counting(state: State, event: Event, *, now_s: float, policy: Policy) -> Transition:
        decided.append(event)
        return transition(state, event, now_s=now_s, policy=policy)

    monkeypatch.setattr("bamboo.core.together.transition", counting)
    for number, kind in enumerate(("ready", "stopped", "built"), start=1):
        state = together(state, [answer(kind, node, since) for node in NODES[:6]]).state
        assert len(decided) == 2 * number
    assert state.phase is Phase.RUNNING


def test_nothing_said_changes_nothing() -> None:
    state = stopping(planned=False)
    assert together(state, []) == Transition(state=state, effects=(), reason="")
    stranger = [answer("stopped", NODES[7], 3), lost(NODES[7])]
    assert together(state, stranger).state is state
