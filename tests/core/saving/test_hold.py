"""Before which losses all hold for an emergency, and that a round that finishes a step is cut short
for it."""

from dataclasses import replace

import pytest

from bamboo.core.effects import Quiesce
from bamboo.core.events import SaveDue
from bamboo.core.saving.emergency import hold_by_s, is_awaited
from tests.core.saving.test_emergency import A, B, C, D, notice, running, say


def test_nobody_is_taken_while_all_stop() -> None:
    """What an owner alone has of its last step is gone with it: all hold before it is taken."""
    found = say(running(), notice(A, 19.0), notice(B, 11.9)).state.emergency
    assert found is not None
    assert found.by_s == pytest.approx(19.0 - 1.5 * 4.0 - 1.0), "A stores all"
    assert [loss_s for loss_s, _ in found.losses] == [19.0, 11.9]
    assert [by_s for _, by_s in found.losses] == pytest.approx([15.0, 7.9]), "each its own stage"
    assert hold_by_s(found, now_s=5.0, step_s=0.1) == pytest.approx(7.9)
    far = replace(found, losses=((19.0, 15.0), (9.0, 5.0)))
    assert hold_by_s(far, now_s=1.0, step_s=0.1) == found.by_s, "it is recovered by then"
    assert hold_by_s(far, now_s=1.0, step_s=1.0) == 5.0
    assert hold_by_s(found, now_s=8.0, step_s=0.1) == found.by_s, "that time is over"
    assert not is_awaited(found, now_s=7.0)
    assert is_awaited(found, now_s=8.0), "it is recovered first"
    assert not is_awaited(found, now_s=11.9)


def test_a_step_that_all_finish_first_may_take_too_long() -> None:
    """Before a new layout all finish a step: what has no home is found meanwhile, too."""
    state = say(running(2, "peer"), notice(A, 20.0)).state
    assert state.reconfiguration is not None
    assert state.reconfiguration.planned
    state = say(state, *(notice(node, 20.0) for node in (B, C, D))).state
    assert state.emergency is not None
    due = SaveDue(node=B, since=state.emergency.since, at_once=True)
    late = say(state, due)
    assert {type(e) for e in late.effects} == {Quiesce}
    assert late.state.reconfiguration is not None
    assert late.state.reconfiguration.save
