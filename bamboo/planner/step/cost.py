"""The expected time of a plan's calm step, and what its nodes do in it.

Rule: the time is that of `step_time`; durations of layers come with the workload, which names
their source.
"""

import itertools
from dataclasses import dataclass

from bamboo.errors import InputError
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.figures import figures, plan_run
from bamboo.planner.step.layout import Costs, Layout, layout_of
from bamboo.planner.step.step_time import StepTimes
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.virtual_nodes import BatchShape, blocks
from bamboo.value import samples_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected figures of a calm step."""

    source: str
    step_s: float
    samples_per_s: float
    bubble: float
    redundant: float


def layout_for(grid: Grid, *, shape: BatchShape, mode: str) -> Layout:
    """The layout at a job's start: each pipeline runs the microbatches of its virtual nodes."""
    held = blocks(shape.virtual_nodes, grid.pipelines)
    counts = [len(block) * shape.microbatches for block in held]
    return layout_of(grid, microbatches=counts, mode=mode)


def costs_for(workload: WorkloadFigures, grid: Grid, mode: str = "stash") -> Costs:
    """Costs of a dry run of all pipelines of a grid: times of the stages, and sizes of messages. Of
    the mode it counts whether there are shadows."""
    cut = workload.cut(grid.stages)
    of_stage = [workload.layers[first:stop] for first, stop in itertools.pairwise(cut)]
    shares = equal_shares(workload.shape.virtual_nodes, grid.pipelines)
    synced = StepTimes(workload, mode).synced(grid, shares)
    return Costs.of(
        grid.stages,
        forward_s=workload.sums(workload.forward_s, cut),
        backward_s=workload.sums(workload.back_s, cut),
        exchange_s=synced.work_s,
        step_s=workload.sums(workload.steps_s, cut),
        latency_s=workload.latency_s,
        bytes_per_s=workload.bytes_per_s,
        boundary_bytes=[float(layers[-1].output_bytes) for layers in of_stage],
        back_bytes=[float(layers[-1].returned_bytes) for layers in of_stage],
        gradient_bytes=synced.ship_bytes,
        exchange_bytes=[size / max(grid.pipelines - 1, 1) for size in synced.sent_bytes],
        links_bytes=synced.links_bytes,
        rebuild_s=synced.rebuild_s,
    )


def expected(workload: WorkloadFigures, grid: Grid, mode: str) -> Expected:
    """A calm step. Its time is that of `StepTimes`; a dry run of all pipelines gives its redundant
    work, and the rest of the time, but for its share of evaluations, is bubble. Raises InputError
    where no forward or backward takes time."""
    shares = equal_shares(workload.shape.virtual_nodes, grid.pipelines)
    times = StepTimes(workload, mode)
    step_s = times.calm_s(grid, shares)
    if not sum(workload.both_s) > 0:
        raise InputError(f"operations take 0 s by times {workload.source}; give one a time above 0")
    costs = costs_for(workload, grid, mode)
    found = figures(plan_run(layout_for(grid, shape=workload.shape, mode=mode), costs), costs)
    played, evaluated = found.step_s / step_s, times.evaluation_share_s(grid, shares) / step_s
    return Expected(
        source=workload.source,
        step_s=step_s,
        samples_per_s=samples_per_s(workload.batch, step_s),
        bubble=1.0 - played * (1.0 - found.bubble) - evaluated,
        redundant=found.redundant * played,
    )
