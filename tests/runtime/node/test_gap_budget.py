"""Which nodes are told of waits to fill: those that shadow a stage in mode `gap`, and no others."""

from dataclasses import replace

from bamboo.runtime.node.trainer import gap_budget_of
from bamboo.schedule.layout import layout_of
from bamboo.topology.grid import Grid
from tests.runtime.test_interleavings import job


def budgets(redundancy: str) -> list[dict[int, int]]:
    """Of the nodes of four stages, each of which shadows the next."""
    settings = job(stages=4, redundancy=redundancy, virtual_nodes=1)
    settings = replace(settings, cluster=replace(settings.cluster, device="virtual"))
    grid = Grid(pipelines=1, stages=4)
    assignment = layout_of(grid, microbatches=[8], mode="stash").assignment
    return [gap_budget_of(settings, assignment, node) for node in assignment.owners]


def test_only_the_shadows_of_stages_in_gap_have_a_budget() -> None:
    of_all = budgets("gap")
    assert all(of_all)
    assert budgets("gap,stash,full,gap") == [{}, {}, of_all[2], of_all[3]]
    assert budgets("full,gap") == of_all, "of another number of stages: the least redundant"
    assert not any(budgets("eager"))
