"""The expected time of a plan's calm step, and what its nodes do in it.

Rule: the time is that of `step_time`; durations of layers come with the workload, which names
their source.
"""

import itertools
from dataclasses import dataclass

from bamboo.errors import InputError
from bamboo.planner.layers.memory import partials_at_end
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


def costs_for(workload: WorkloadFigures, grid: Grid) -> Costs:
    """Costs of a dry run of all pipelines of a grid: times of the stages, and sizes of messages.

    In the exchange an owner sends each peer (k + 1) / D of its gradient's bytes: its k partials
    of the peer's shard, and the result of its own.
    """
    cut, shape = workload.cut(grid.stages), workload.shape
    of_stage = [workload.layers[first:stop] for first, stop in itertools.pairwise(cut)]
    gradient = [sum(layer.gradient_bytes for layer in layers) for layers in of_stage]
    partials = max(
        partials_at_end(block, shape.virtual_nodes)
        for block in blocks(shape.virtual_nodes, grid.pipelines)
    )
    share = (partials + 1) / grid.pipelines if grid.pipelines > 1 else 0.0
    return Costs.of(
        grid.stages,
        forward_s=workload.sums(workload.forward_s, cut),
        backward_s=workload.sums(workload.back_s, cut),
        step_s=workload.sums(workload.steps_s, cut),
        latency_s=workload.latency_s,
        bytes_per_s=workload.bytes_per_s,
        boundary_bytes=[float(layers[-1].output_bytes) for layers in of_stage],
        back_bytes=[float(layers[-1].returned_bytes) for layers in of_stage],
        gradient_bytes=[float(size) for size in gradient],
        exchange_bytes=[size * share for size in gradient],
    )


def expected(workload: WorkloadFigures, grid: Grid, mode: str) -> Expected:
    """A calm step. Its time is that of `StepTimes`; a dry run of all pipelines gives its redundant
    work, and the rest of the time, but for its share of evaluations, is bubble. Raises InputError
    for a step without duration."""
    shares = equal_shares(workload.shape.virtual_nodes, grid.pipelines)
    times = StepTimes(workload, mode)
    step_s = times.calm_s(grid, shares)
    if not step_s > 0:
        raise InputError(
            f"a step takes {step_s:g} s by times {workload.source}; give operations a time above 0"
        )
    costs = costs_for(workload, grid)
    found = figures(plan_run(layout_for(grid, shape=workload.shape, mode=mode), costs), costs)
    played, evaluated = found.step_s / step_s, times.evaluation_share_s(grid, shares) / step_s
    return Expected(
        source=workload.source,
        step_s=step_s,
        samples_per_s=samples_per_s(workload.batch, step_s),
        bubble=1.0 - played * (1.0 - found.bubble) - evaluated,
        redundant=found.redundant * played,
    )
