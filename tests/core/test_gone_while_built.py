"""Without redundancy, who goes while a new layout is built and had nothing alone ends nothing."""

import pytest

from bamboo.core.events import BoundaryReady
from bamboo.core.state import Outcome
from tests.core.build import joined, lost
from tests.core.test_emergency import A, B, C, D, notice, running, say, stopped

LAYERS = {A: (0, 2), B: (2, 4), C: (0, 2), D: (2, 4)}


@pytest.mark.parametrize("others", [True, False])
def test_what_others_have_too_is_not_lost_with_it(others: bool) -> None:
    """Two pipelines make room for one of two new nodes; C, whom nobody needs any more, goes."""
    state = say(running(2, "off"), joined("n04.1"), joined("n05.1")).state
    for node in (A, B, C, D):
        state = say(state, notice(node, 20.0)).state
    assert state.reconfiguration is not None
    since = state.reconfiguration.since
    ready = [BoundaryReady(node=n.id, since=since, step=8) for n in state.live_nodes()]
    state = say(state, *ready).state
    for node in state.live_nodes():
        layers = () if node.id not in LAYERS else (LAYERS[node.id],)
        if node.id == A and not others:
            layers = ()
        state = say(state, stopped(state, node.id, *layers)).state
    assert state.reconfiguration is not None
    assert state.reconfiguration.base == 9
    assert state.assignment is not None
    assert C not in state.assignment.members()
    over = say(state, lost(C)).state
    for node in over.live_nodes():
        layers = () if node.id not in LAYERS or node.id == C else (LAYERS[node.id],)
        if node.id == A and not others:
            layers = ()
        over = say(over, stopped(over, node.id, *layers)).state
        if over.outcome is not None:
            break
    assert (over.outcome is None) is others
    assert others or over.outcome is Outcome.UNRECOVERABLE
