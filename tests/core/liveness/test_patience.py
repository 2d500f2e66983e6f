"""What is said of nodes that do not come: until it was heard, once in a generation."""

from dataclasses import replace

import pytest

from bamboo.core.events import CaughtUp, Reconsider, RunFailed
from bamboo.core.liveness.patience import READING, Patience, stands_for_s
from bamboo.core.state import Checkpoint, Outcome, Reconfiguration, State
from tests.core.build import apply, lost, running

STORED = Checkpoint(step=8, era=1)


def short() -> State:
    """Three of four nodes train on."""
    state = apply(running(1, 4), lost("n01.1")).state
    failover = state.failovers[0]
    done = CaughtUp(
        node=failover.successor,
        slot=failover.slot,
        step=1,
        recomputed=1,
        already_computed=0,
        pause_s=0.1,
    )
    return apply(state, done).state


def test_it_is_said_again_until_it_was_heard_and_then_no_more_in_that_generation() -> None:
    patience, state = Patience(patience_s=5.0, park_s=60.0), short()
    assert patience.due(state, now_s=0.0) is None
    for now_s in (5.0, 6.0, 7.0):  # the store was away: nobody has heard it
        event = patience.due(state, now_s=now_s)
        assert isinstance(event, Reconsider)
    patience.said(event, state)
    assert patience.due(state, now_s=8.0) is None
    later = replace(state, generation=state.generation + 1)
    assert isinstance(patience.due(later, now_s=9.0), Reconsider)


def test_it_tells_when_something_will_be_due() -> None:
    patience, state = Patience(patience_s=5.0, park_s=60.0), short()
    assert patience.due_at_s(state) is None, "nothing was shown yet"
    patience.due(state, now_s=1.0)
    assert patience.due_at_s(state) == 6.0
    event = patience.due(state, now_s=6.0)
    assert event is not None
    patience.said(event, state)
    assert patience.due_at_s(state) is None


def test_state_has_longer_to_be_moved_than_a_step_has() -> None:
    state = running(1, 4)
    assert stands_for_s(state, step_timeout_s=60.0) == 60.0
    moves = Reconfiguration(since=1, why="x", planned=False, intact=False, asked=(), base=8)
    assert stands_for_s(replace(state, reconfiguration=moves), step_timeout_s=60.0) > READING * 60.0
    undecided = replace(moves, base=None)
    assert stands_for_s(replace(state, reconfiguration=undecided), step_timeout_s=60.0) == 60.0


@pytest.mark.parametrize(
    ("stored", "outcome"), [((), Outcome.UNRECOVERABLE), ((STORED,), Outcome.PARKED)]
)
def test_a_run_that_waits_in_vain_is_parked_where_it_has_something_to_go_on_from(
    stored: tuple[Checkpoint, ...], outcome: Outcome
) -> None:
    waits = Reconfiguration(since=1, why="x", planned=False, intact=False, asked=())
    state = replace(running(1, 4), reconfiguration=waits, checkpoints=stored)
    patience = Patience(patience_s=5.0, park_s=60.0)
    patience.due(state, now_s=0.0)
    event = patience.due(state, now_s=60.0)
    assert isinstance(event, RunFailed)
    assert (event.outcome, event.outcome.exit_code) == (outcome, 3)
    said = "goes on from step 8" if stored else "starts over"
    assert event.reason.endswith(f"`bamboo resume {state.run}` {said}")
