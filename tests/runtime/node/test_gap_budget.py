"""Which nodes are told of waits to fill: those that shadow a stage in mode `gap`, and no others."""

from dataclasses import replace
from typing import Any

from bamboo.planner.step.layout import layout_of
from bamboo.runtime.node.trainer import gap_budget_of
from bamboo.topology.grid import Grid
from tests.runtime.test_interleavings import job


def budgets(redundancy: str, **cluster: Any) -> list[dict[int, int]]:
    """Of the nodes of four stages of two layers, each of which shadows the next."""
    settings = job(stages=4, redundancy=redundancy, virtual_nodes=1)
    settings = replace(settings, cluster=replace(settings.cluster, device="virtual", **cluster))
    grid = Grid(pipelines=1, stages=4)
    assignment = layout_of(grid, microbatches=[8], mode="stash").assignment
    cut = (0, 2, 4, 6, 8)
    return [gap_budget_of(settings, assignment, node, cut) for node in assignment.owners]


def test_only_the_shadows_of_stages_in_gap_have_a_budget() -> None:
    of_all = budgets("gap")
    assert all(of_all)
    assert budgets("gap,stash,full,gap") == [{}, {}, of_all[2], of_all[3]]
    assert budgets("full,gap") == of_all, "of another number of stages: the least redundant"
    assert not any(budgets("eager"))


def test_the_models_last_layer_is_not_computed_again() -> None:
    forward = (20.0, 20.0, 20.0, 40.0)
    again = budgets("gap", recompute="layer", virtual_forward_ms=forward)
    figures = {"virtual_forward_ms": forward, "virtual_backward_ms": (60.0, 60.0, 60.0, 60.0)}
    assert again == budgets("gap", **figures)
    whole = {"virtual_forward_ms": forward, "virtual_backward_ms": (60.0, 60.0, 60.0, 80.0)}
    assert again != budgets("gap", **whole), "or this test shows nothing"
