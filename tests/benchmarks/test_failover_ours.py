"""What the decision log says of work done in vain."""

from dataclasses import replace

from bamboo.coord.follow import Decision
from bamboo.core.events import PeerLost
from bamboo.core.reconfiguration import begin_reconfiguration
from bamboo.core.state import State
from benchmarks.failover.failover_ours import unplanned
from tests.core.build import running


def decision(state: State, at_s: float) -> Decision:
    event = PeerLost(node=state.nodes[0].id, reporter="agent", cause="exit")
    return Decision(event=event, now_s=at_s, effects=(), reason="", state=state, author="a")


def laid_out(base: int, *, planned: bool) -> list[State]:
    """A reconfiguration from its begin to its base."""
    state, _ = begin_reconfiguration(running(), why="x", planned=planned)
    assert state.reconfiguration is not None
    return [state, replace(state, reconfiguration=replace(state.reconfiguration, base=base))]


def test_only_where_all_stopped_where_they_were_something_was_done_in_vain() -> None:
    begun, based = laid_out(7, planned=False)
    log = [decision(s, at_s) for at_s, s in enumerate((running(), begun, based, based), start=1)]
    assert unplanned(log) == [(3, 7)]
    assert unplanned([decision(state, 1.0) for state in laid_out(7, planned=True)]) == []
    assert unplanned([decision(running(), 1.0)]) == []
