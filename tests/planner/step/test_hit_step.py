"""The dry run of a step in which a node is lost."""

import pytest

from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.planner.step.figures import plan_run
from bamboo.planner.step.hit_step import hit_run
from bamboo.planner.step.layout import Costs, Layout, layout_of
from bamboo.planner.step.timeline import Timeline
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot

STEPS = 5
FORWARD_S, BACKWARD_S = 0.020, 0.040


def four(mode: str = "stash") -> tuple[Layout, Costs]:
    layout = layout_of(Grid(pipelines=1, stages=4), microbatches=(8,), mode=mode)
    return layout, Costs.of(4, forward_s=(FORWARD_S,), backward_s=(BACKWARD_S,))


def hit(stage: int, at_ns: int, mode: str = "stash") -> Timeline:
    layout, costs = four(mode)
    return hit_run(layout, costs, victim=NodeId(f"0.{stage}"), at_ns=at_ns, steps=STEPS)


def calm_ns(mode: str = "stash") -> tuple[int, ...]:
    return plan_run(*four(mode), steps=STEPS).commit_ns


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("mode", ["stash", "eager", "full"])
def test_steps_before_the_loss_are_calm_and_those_after_it_are_a_merged_nodes(
    stage: int, mode: str
) -> None:
    calm = calm_ns(mode)
    found = hit(stage, (calm[1] + calm[2]) // 2, mode)
    assert found.commit_ns[:2] == calm[:2]
    assert found.commit_ns[2] >= calm[2]
    both_ns = round(2 * 8 * (FORWARD_S + BACKWARD_S) * 1e9)
    assert found.commit_ns[4] - found.commit_ns[3] >= both_ns
    assert NodeId(f"0.{stage}") not in {r.node for r in found.ran if r.step > 2}


def test_at_the_end_of_a_step_more_has_to_be_done_again_than_at_its_beginning() -> None:
    calm = calm_ns()
    early, late = (hit(2, calm[1] + ns).commit_ns[2] for ns in (1, calm[2] - calm[1] - 1))
    work_ns = round(8 * (FORWARD_S + BACKWARD_S) * 1e9)
    assert late > early
    assert late >= calm[2] + work_ns, "all that stage 2 had done is done again after the loss"


def test_operations_that_had_ended_on_the_victim_are_run_again_by_its_heir() -> None:
    calm = calm_ns()
    found = hit(2, (calm[1] + calm[2]) // 2)
    slot = Slot(pipeline=0, stage=2)
    ran = [r for r in found.ran if r.slot == slot and r.step == 2]
    heirs = [r.instruction for r in ran if r.node == NodeId("0.1")]
    victims = [r for r in ran if r.node == NodeId("0.2")]
    assert len([i for i in heirs if i.kind in ("F", "B")]) == 16
    assert victims
    assert all(r.end_ns <= (calm[1] + calm[2]) // 2 for r in victims)


def test_forwards_that_the_shadow_had_run_ahead_are_only_sent() -> None:
    calm = calm_ns("eager")
    at_ns = calm[2] - 1
    found = hit(2, at_ns, "eager")
    again = [
        r
        for r in found.ran
        if r.slot.stage == 2
        and r.step == 2
        and r.node == NodeId("0.1")
        and r.instruction.kind == "F"
    ]
    assert len(again) == 8
    ahead = [r for r in found.ran if r.instruction.kind == "FR" and r.slot.stage == 2]
    ahead_now = [r for r in ahead if r.step == 2 and r.start_ns < at_ns]
    assert ahead_now
    assert sum(r.end_ns == r.start_ns for r in again) == len(ahead_now)


def test_a_loss_between_two_steps_loses_nothing_that_was_reduced() -> None:
    calm = calm_ns()
    found = hit(1, calm[1] + 1)
    assert found.commit_ns[1] == calm[1]
    assert len({r.step for r in found.ran if r.instruction.kind == "S"}) == STEPS


def test_a_loss_without_a_live_copy_and_a_grid_of_several_pipelines_are_refused() -> None:
    with pytest.raises(ValueError, match="no live copy"):
        hit(1, 0, "off")
    layout = layout_of(Grid(pipelines=2, stages=2), microbatches=(4,), mode="stash")
    costs = Costs.of(2, forward_s=(FORWARD_S,), backward_s=(BACKWARD_S,))
    with pytest.raises(CoreMisuse, match="one pipeline"):
        hit_run(layout, costs, victim=NodeId("0.1"), at_ns=0, steps=2)
