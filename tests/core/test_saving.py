"""Checkpoints in the making: what is noted of them is bounded, and a slow node keeps its own."""

from bamboo.core.events import CheckpointDone, CheckpointFailed, ShardSaved
from bamboo.core.saving import BEGUN
from bamboo.core.state import State
from bamboo.ids import NodeId
from tests.core.build import apply, lost, running

STAGES = 4


def saved(state: State, stage: int, step: int) -> State:
    node = NodeId(f"n{stage:02}.1")
    return apply(state, ShardSaved(node=node, step=step, era=state.era, stage=stage)).state


def failed(state: State, stage: int, step: int) -> State:
    node = NodeId(f"n{stage:02}.1")
    event = CheckpointFailed(node=node, step=step, era=state.era, reason="no room")
    return apply(state, event).state


def test_a_disk_that_is_full_for_good_adds_nothing_to_the_state() -> None:
    """The stages that are stored after one failed begin it anew, in vain."""
    state = running(stages=STAGES)
    for step in range(5, 500, 5):
        state = saved(state, 0, step)
        state = failed(state, 1, step)
        for stage in (2, 3):
            state = saved(state, stage, step)
        assert len(state.saving) <= BEGUN
    assert [s.step for s in state.saving] == sorted(s.step for s in state.saving)
    for stage in range(STAGES):
        state = saved(state, stage, 500)
    assert state.saving[-1].committer is not None
    done = CheckpointDone(node=NodeId("n00.1"), step=500, era=state.era)
    state = apply(state, done).state
    assert [c.step for c in state.checkpoints] == [500]
    assert not state.saving


def test_a_slow_disk_still_completes_one_while_others_are_further() -> None:
    """It stores step 5 when the others have stored 10, and cannot begin 10 for that."""
    state = running(stages=STAGES)
    for step in (5, 10):
        for stage in (0, 1, 2):
            state = saved(state, stage, step)
    state = saved(failed(state, 3, 10), 3, 5)
    assert next(s for s in state.saving if s.step == 5).committer is not None


def test_what_comes_when_many_later_ones_are_in_the_making_is_not_noted() -> None:
    state = running(stages=STAGES)
    for step in range(10, 10 + 5 * BEGUN, 5):
        state = saved(state, 0, step)
    assert saved(state, 1, 5) is state
    assert saved(state, 1, 10) is not state


def test_one_that_is_given_up_is_named() -> None:
    state = running(stages=STAGES)
    reasons = []
    for step in range(5, 10 + 5 * BEGUN, 5):
        event = ShardSaved(node=NodeId("n00.1"), step=step, era=state.era, stage=0)
        decided = apply(state, event)
        state, reasons = decided.state, [*reasons, decided.reason]
    assert ["given up" in reason for reason in reasons] == [*[False] * BEGUN, True]
    assert "the checkpoint of step 5 is given up" in reasons[-1]


def test_a_part_of_one_that_is_complete_is_not_noted() -> None:
    """The first live member completes it; another one does when that one goes."""
    state = running(stages=STAGES)
    for stage in range(STAGES):
        state = saved(state, stage, 10)
    assert state.saving[-1].committer == NodeId("n00.1")
    state = apply(state, lost("n00.1")).state
    assert state.saving[-1].committer == NodeId("n01.1")
    done = CheckpointDone(node=NodeId("n01.1"), step=10, era=state.era)
    state = apply(state, done).state
    assert (state.checkpoints[-1].step, state.saving) == (10, ())
    assert apply(state, done).state is state
    for step in (9, 10):
        assert saved(state, 1, step) is state
    assert saved(state, 1, 11) is not state
