"""How long a step takes and what it is worth: a dry run with sizes from the layers' facts.

Rule: durations are measured or given by the caller, who says which; they are never guessed from a
GPU's name.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from bamboo.errors import InputError
from bamboo.planner.memory import partials_at_end
from bamboo.planner.profile import FLOAT_BYTES, LayerFacts
from bamboo.planner.value import samples_per_s
from bamboo.schedule.figures import figures, plan_run
from bamboo.schedule.layout import Costs, Layout, layout_of
from bamboo.topology.grid import Grid
from bamboo.topology.virtual_nodes import BatchShape, blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations per stage (one figure for all, or one each), and where they come from."""

    source: str
    """Such as `measured` or `given`; shown beside every figure made from it."""
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    step_s: tuple[float, ...] = ()
    """Of the optimizer, with which owner and replica end a step; empty: it takes no time."""
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    """Of a link between two nodes; 0: sizes do not matter."""
    node_bytes_per_s: float = 0.0
    """Of all that a node sends together; 0: only each link has a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a calm step is expected to take."""

    source: str
    step_s: float
    samples_per_s: float
    bubble: float
    redundant: float
    busy: tuple[float, ...]
    """Of each count of nodes from 0 on: the share of the step in which so many compute at once."""


def shared_step_s(calm: Expected, *, cores: int) -> float:
    """A calm step in seconds where its nodes are processes that share `cores`: whenever more of
    them compute at once than there are cores, that takes longer by as much. Bubbles are no loss
    while others compute; a core stands idle where a pipeline fills and drains."""
    return calm.step_s * sum(
        share * max(1.0, nodes / cores) for nodes, share in enumerate(calm.busy)
    )


def layout_for(grid: Grid, *, shape: BatchShape, mode: str) -> Layout:
    """The layout at a job's start: each pipeline runs the microbatches of its virtual nodes."""
    held = blocks(shape.virtual_nodes, grid.pipelines)
    counts = [len(block) * shape.microbatches for block in held]
    return layout_of(grid, microbatches=counts, mode=mode)


def costs_for(
    facts: Sequence[LayerFacts],
    *,
    cut: Sequence[int],
    grid: Grid,
    shape: BatchShape,
    timing: Timing,
) -> Costs:
    """Costs of a dry run: the timing, with message sizes from the facts of the layers.

    In the exchange an owner sends each peer (k + 1) / D of its gradient's bytes: its k partials
    of the peer's shard, and the result of its own. Raises InputError on another count of figures.
    """
    of_stage = [facts[first:stop] for first, stop in itertools.pairwise(cut)]
    gradient = [FLOAT_BYTES * sum(layer.parameters for layer in layers) for layers in of_stage]
    partials = max(
        partials_at_end(block, shape.virtual_nodes)
        for block in blocks(shape.virtual_nodes, grid.pipelines)
    )
    share = (partials + 1) / grid.pipelines if grid.pipelines > 1 else 0.0
    return Costs.of(
        grid.stages,
        forward_s=timing.forward_s,
        backward_s=timing.backward_s,
        step_s=timing.step_s,
        latency_s=timing.latency_s,
        bytes_per_s=timing.bytes_per_s,
        boundary_bytes=[float(layers[-1].output_bytes) for layers in of_stage],
        gradient_bytes=[float(size) for size in gradient],
        exchange_bytes=[size * share for size in gradient],
    )


def sent_bytes(
    boundary_bytes: Sequence[float],
    gradient_bytes: Sequence[float],
    *,
    microbatches: int,
    copies: float,
) -> tuple[float, ...]:
    """What the node of each stage sends to others in a calm step: outputs and gradients of inputs
    of so many microbatches, and its gradient so many times over. `boundary_bytes` and
    `gradient_bytes` are those of each stage."""
    crossing = [0.0, *boundary_bytes[:-1], 0.0]
    return tuple(
        microbatches * (before + after) + size * copies
        for (before, after), size in zip(itertools.pairwise(crossing), gradient_bytes, strict=True)
    )


def expected(
    layout: Layout, costs: Costs, *, batch: int, source: str, least_s: float = 0.0
) -> Expected:
    """Time a calm step of `batch` samples by a dry run; it takes no less than `least_s`, of which
    the rest is bubble. Raises InputError for one of no time."""
    found = figures(plan_run(layout, costs), costs)
    if not found.step_s > 0:
        raise InputError(
            f"a step takes {found.step_s:g} s by times {source}; give operations a time above 0"
        )
    step_s = max(found.step_s, least_s)
    played = found.step_s / step_s
    return Expected(
        source=source,
        step_s=step_s,
        samples_per_s=samples_per_s(batch, step_s),
        bubble=1.0 - played * (1.0 - found.bubble),
        redundant=found.redundant * played,
        busy=(1.0 - played * (1.0 - found.busy[0]), *(share * played for share in found.busy[1:])),
    )
