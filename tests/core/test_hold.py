"""Before which losses all hold for an emergency, and that a round that finishes a step is cut short
for it."""

from dataclasses import replace

import pytest

from bamboo.core.effects import Quiesce
from bamboo.core.events import SaveDue
from bamboo.core.keep import MARGIN_S, divide, fits_notice, held_by, shards_of
from bamboo.core.saving import hold_by_s, is_awaited
from bamboo.core.state import Built, Holding, Reconfiguration, Report, State
from bamboo.ids import NodeId
from tests.core.build import lost
from tests.core.test_emergency import POLICY, A, B, C, D, kept_of_two, notice, running, say


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
    edge = replace(found, losses=((found.by_s + MARGIN_S, 5.0),))
    assert hold_by_s(edge, now_s=1.0, step_s=0.1) == found.by_s, "it is taken when all stand still"
    assert not is_awaited(edge, now_s=6.0)
    assert not is_awaited(found, now_s=7.0)
    assert is_awaited(found, now_s=found.losses[1][1])
    assert is_awaited(found, now_s=8.0), "it is recovered first"
    assert not is_awaited(found, now_s=11.9)


def test_a_notice_that_is_just_long_enough_is() -> None:
    """A stage takes 4 s."""
    assert fits_notice(replace(POLICY, notice_s=4.0), (0, 2, 4))
    assert not fits_notice(replace(POLICY, notice_s=3.9), (0, 2, 4))
    assert not fits_notice(replace(POLICY, layer_bytes=()), (0, 2, 4))


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


def test_what_is_still_to_be_sent_is_held_by_nobody_new() -> None:
    """While a layout is made, a node has what it had when all stopped, or what it said it has."""
    state = say(running(2), lost(A)).state
    assert state.assignment is not None
    stopped_at = tuple(
        Report(node=node, holdings=(Holding(first=a, stop=a + 2, step=9, reach=9),), norms=())
        for node, a in ((B, 2), (C, 0))
    )
    building = Reconfiguration(
        since=1, why="x", planned=False, intact=True, asked=(B, C), base=9, reports=stopped_at
    )
    state = replace(state, reconfiguration=building)
    assert held_by(state, POLICY) == {0: [C], 1: [C], 2: [B], 3: [B]}
    built = replace(building, rebuilt=(Built(node=D, bytes=1),))
    found = held_by(replace(state, reconfiguration=built), POLICY)
    assert {layer: nodes[1:] for layer, nodes in found.items()} == {
        layer: [D] if D in owners_of(state, layer) else [] for layer in range(4)
    }


def owners_of(state: State, layer: int) -> set[NodeId | None]:
    """Who owns or shadows a layer of two stages of two layers each."""
    assignment = state.assignment
    assert assignment is not None
    mine = [slot for slot in state.grid.slots() if slot.stage == layer // 2]
    return {role(slot) for slot in mine for role in (assignment.owner, assignment.shadow)}


def test_a_checkpoint_has_a_part_of_each_stage_and_in_an_emergency_of_each_who_stores() -> None:
    state = kept_of_two((20.0, 11.0))
    assert state.reconfiguration is not None
    keep = state.reconfiguration.keep
    assert keep is not None
    assert (shards_of(state, keep.era), shards_of(state, keep.era - 1)) == (len(keep.parts), 2)
    assert len(keep.parts) == 1, "who lives longer stores all"
    assert shards_of(running(), 1) == 2


def test_who_stays_stores_as_much_as_the_others_who_stay() -> None:
    plan = divide({layer: [A, B] for layer in range(4)}, running(), POLICY)
    assert plan is not None
    assert [(part.node, part.layers) for part in plan.parts] == [(A, (0, 1)), (B, (2, 3))]
    told = say(running(), notice(A, 20.0)).state
    plan = divide({layer: [A, B] for layer in range(4)}, told, POLICY)
    assert plan is not None
    assert [(part.node, part.layers) for part in plan.parts] == [(B, (0, 1, 2, 3))]
    assert divide({0: [A], 1: []}, told, POLICY) is None, "nobody has a layer"
