"""Cuts a list of layers into stages that each fit a node's memory: exact, and deterministic.

Rule: among the cuts in which every node holds at most the limit, by `memory_report`, this chooses
as `partition` does: the least slowest stage, then the least sum of the squares of the stages'
costs, then the first cut in dictionary order. So a limit that does not bind changes nothing.

The search itself is in `bounded_search`, which is loaded only when there is something to search:
most jobs fit when they are cut by time alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from bamboo.errors import InputError
from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.layers.memory import (
    StageBytes,
    Weights,
    memory_report,
    sizes_of,
    stage_counts,
)
from bamboo.planner.layers.partition import check_costs
from bamboo.quantities import count, size
from bamboo.topology.grid import Grid
from bamboo.topology.virtual_nodes import BatchShape

MOST_BYTES = 2**50
"""1 PiB, more than any node has."""
MOST_IN_ALL = 2**60


class FitsNowhere(InputError):
    """No cut of these layers into this number of stages fits."""

    def __init__(self, message: str, *, layer: int, needs_bytes: int, limit_bytes: int) -> None:
        super().__init__(message)
        self.layer = layer
        """The largest layer of the fullest node, in the cut that needs least."""
        self.needs_bytes = needs_bytes
        """The bytes of the fullest node in that cut; no limit below this can be met."""
        self.limit_bytes = limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """All that a node's bytes depend on apart from the cut, and the limit."""

    grid: Grid
    shape: BatchShape
    mode: str
    limit_bytes: int


def bounded_partition(
    facts: Sequence[LayerFacts], costs: Sequence[float], bounds: Bounds
) -> tuple[int, ...]:
    """The best cut that fits, as a `Placement.cut`. `costs` is as for `partition`.

    Raises FitsNowhere with the layer and the bytes when no cut does, and InputError for unusable
    costs, fewer layers than stages, or a limit that cannot be the size of a memory.
    """
    found = bounded_cut(facts, costs, bounds)
    if found is None:
        raise _why(facts, costs, bounds)
    return found


def bounded_cut(
    facts: Sequence[LayerFacts], costs: Sequence[float], bounds: Bounds
) -> tuple[int, ...] | None:
    """Like `bounded_partition`, but None if nothing fits, which is found sooner than the reason."""
    check_costs(costs, bounds.grid.stages)
    if len(facts) != len(costs):
        raise ValueError(f"{len(facts)} layers and {len(costs)} costs")
    limit = bounds.limit_bytes
    if not 0 < limit <= MOST_BYTES:
        raise InputError(f"a node's memory of {limit} bytes; give 1 to {MOST_BYTES} bytes")
    weights = _weights(bounds.grid, bounds.shape, bounds.mode)
    _check_countable(facts, weights)
    if _too_much(facts, weights, limit):
        return None
    if len(weights) == 1:
        only = (0, len(facts))
        return only if _fullest(facts, only, bounds).total <= limit else None
    from bamboo.planner.layers.bounded_search import Search

    return Search(facts, costs, weights, limit).best()


def _too_much(facts: Sequence[LayerFacts], weights: Sequence[Weights], limit: int) -> bool:
    """Whether it is clear that nothing fits: some layer does not fit even alone, or the sum of all
    layers exceeds all nodes, with each layer on the stage where it and its replica take least."""
    last = weights[-1]
    if any(last.alone([x]) + last.counts.again_bytes(x) > limit for x in facts):
        return True
    pairs = [(weight, weights[stage - 1]) for stage, weight in enumerate(weights)]
    sizes = sizes_of(facts)
    least = (
        min(
            own.parameters * sizes.parameters
            + own.moments * (sizes.moments + sizes.frozen)
            + before.following_replica * sizes.replica
            for own, before in pairs
        )
        + min(own.activations + before.following_activations for own, before in pairs)
        * sizes.activations
        # Most are in flight in the first stage, so the exchange adds least there.
        + weights[0].counts.exchanged_bytes(facts)
    )
    return least > len(weights) * limit


def _check_countable(facts: Sequence[LayerFacts], weights: Sequence[Weights]) -> None:
    """Raise InputError where sums of bytes would not fit into 64 bits."""
    sizes = sizes_of(facts)
    most = max(max(layer.output_bytes, layer.returned_bytes) for layer in facts)
    whole = max(
        one.alone(facts) + one.beside(facts) + 2 * (one.crossing + one.widest_crossing) * most
        for one in weights
    )
    whole += sizes.again
    if whole > MOST_IN_ALL:
        raise InputError(
            f"all layers in one stage take {whole:,} bytes, and at most {MOST_IN_ALL:,} can be "
            "counted; look for a size that is too large"
        )


def tightest_cut(
    facts: Sequence[LayerFacts], costs: Sequence[float], bounds: Bounds
) -> tuple[int, ...]:
    """The best cut under the lowest limit that any cut meets; the limit of `bounds` is not used.

    The limit is found to the byte by bisection between one that cannot be met and one that can.
    """

    def met(limit: int) -> tuple[int, ...] | None:
        return bounded_cut(facts, costs, replace(bounds, limit_bytes=limit))

    best = met(MOST_BYTES)
    if best is None:
        raise InputError(
            f"every cut needs a node of more than {MOST_BYTES:,} bytes; look for a size that is "
            "too large"
        )
    above, most = 0, _fullest(facts, best, bounds).total
    while most - above > 1:
        middle = (above + most) // 2
        found = met(middle)
        if found is None:
            above = middle
        else:
            best, most = found, _fullest(facts, found, bounds).total
    return best


def _fullest(facts: Sequence[LayerFacts], cut: Sequence[int], bounds: Bounds) -> StageBytes:
    report = memory_report(facts, cut=cut, grid=bounds.grid, shape=bounds.shape, mode=bounds.mode)
    return max(report, key=lambda stage: stage.total)


def _why(facts: Sequence[LayerFacts], costs: Sequence[float], bounds: Bounds) -> FitsNowhere:
    """The fullest node of the cut that needs least, and the largest layer of its stage or, if that
    is larger, of its replica."""
    cut = tightest_cut(facts, costs, bounds)
    full = _fullest(facts, cut, bounds)
    stages = [range(*ends) for ends in pairwise(cut)]
    weights = _weights(bounds.grid, bounds.shape, bounds.mode)[full.stage]
    taken = {
        x: weights.alone([facts[x]]) + weights.counts.again_bytes(facts[x])
        for x in stages[full.stage]
    }
    following = stages[(full.stage + 1) % len(stages)]
    taken = {x: weights.beside([facts[x]]) for x in following} | taken
    layer = max(taken, key=lambda index: taken[index])
    needs, limit = full.total, bounds.limit_bytes
    again = any(layer.input_bytes is not None for layer in facts)
    how = " and layers computed again" if again else ""
    return FitsNowhere(
        f"layer {layer} ({facts[layer].name}) does not fit: however the {len(facts)} layers are "
        f"cut into {count(bounds.grid.stages, 'stage')}, some node needs at least {needs:,} bytes "
        f"({size(needs, digits=2)}) with redundancy {bounds.mode!r}{how}, and it has {limit:,} "
        f"({size(limit, digits=2)}); take more stages, smaller microbatches, less redundancy or "
        "more memory",
        layer=layer,
        needs_bytes=needs,
        limit_bytes=limit,
    )


@lru_cache(maxsize=4096)
def _weights(grid: Grid, shape: BatchShape, mode: str) -> tuple[Weights, ...]:
    return tuple(Weights.of(counts) for counts in stage_counts(grid, shape, mode))
