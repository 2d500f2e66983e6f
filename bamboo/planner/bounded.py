"""Cuts a list of layers into stages that each fit a node's memory: exact, and deterministic.

Rule: among the cuts whose every node holds at most the limit, as `memory_report` counts it, the one
that `partition` would take: the least slowest stage, then the least sum of the squares of the
stages' costs, then the cut that comes first in dictionary order. So a limit that binds nowhere
changes nothing.

The method is dynamic programming over layers, from the last stage to the first, as PipeDream's
(Narayanan et al., SOSP 2019) and DAPPLE's planner (Fan et al., PPoPP 2021) cut a pipeline. There a
stage is judged by its own layers. Here its node also holds a replica of the next stage, so that its
bytes depend on three cuts: its first layer i, its end j, and the end k of the next stage. This is
handled exactly, by two observations of ours:

- **Neighbours.** The bytes are linear in the sizes of the layers (`StageCounts.bytes_of`), so they
  part into F(i) + G(j) + H(k), with H growing in k. The state is a whole stage (i, j); what follows
  it may be any stage (j, k) up to the largest k with H(k) <= limit - F(i) - G(j). The best of those
  is one look into the running minimum of the row of j, so a state costs O(1), and a pass over all
  stages O(stages * layers^2).
- **The ring.** The last node holds a replica of the first stage, which ends at c. For a given c the
  last stage may begin wherever F(i) is at most what c leaves. These sets of beginnings are nested:
  the larger c, the fewer. A pass with the set of one c is exact for it (and all with the same set),
  and a lower bound for every larger c. We begin with the largest set and go on with the c of the
  least bound, until that bound is exact: branch and bound, which ends with the optimum because no
  bound is ever above its c's value. Mostly one or two passes do; there are never more than sets.

The search is done twice: for the slowest stage, and with that as a limit for the sum of squares.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bamboo.errors import InputError
from bamboo.planner.memory import (
    Sizes,
    StageBytes,
    StageCounts,
    memory_report,
    sizes_of,
    stage_counts,
)
from bamboo.planner.partition import check_costs
from bamboo.planner.profile import FLOAT_BYTES, LayerFacts
from bamboo.topology.grid import Grid
from bamboo.topology.virtual_nodes import BatchShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
INF = float("inf")
MOST_BYTES = 2**50
"""Of a node: 1 PiB."""
MOST_IN_ALL = 2**60
GIB = 2**30


class FitsNowhere(InputError):
    """No cut of these layers into so many stages fits, however it is made."""

    def __init__(self, message: str, *, layer: int, needs_bytes: int, limit_bytes: int) -> None:
        super().__init__(message)
        self.layer = layer
        """The largest of those that the fullest node holds in the cut that needs least."""
        self.needs_bytes = needs_bytes
        """Of the fullest node, in that cut: no limit below this can be met."""
        self.limit_bytes = limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """All that a node's bytes depend on beside the cut, and what it may hold."""

    grid: Grid
    shape: BatchShape
    mode: str
    limit_bytes: int


def bounded_partition(
    facts: Sequence[LayerFacts], costs: Sequence[float], bounds: Bounds
) -> tuple[int, ...]:
    """The best cut that fits, as a `Placement.cut`. `costs` is as for `partition`.

    Raises FitsNowhere with the layer and the bytes when no cut does, and InputError for costs that
    are unusable, fewer layers than stages, or a limit that is no size of a memory.
    """
    found = bounded_cut(facts, costs, bounds)
    if found is None:
        raise _why(facts, costs, bounds)
    return found


def bounded_cut(
    facts: Sequence[LayerFacts], costs: Sequence[float], bounds: Bounds
) -> tuple[int, ...] | None:
    """`bounded_partition`, and None where nothing fits: much sooner than the reason is known."""
    check_costs(costs, bounds.grid.stages)
    if len(facts) != len(costs):
        raise ValueError(f"{len(facts)} layers and {len(costs)} costs")
    limit = bounds.limit_bytes
    if not 0 < limit <= MOST_BYTES:
        raise InputError(f"a node's memory of {limit} bytes; give 1 to {MOST_BYTES} bytes")
    weights = _weights(bounds)
    _check_countable(facts, weights)
    if any(weights[-1].alone(sizes_of([layer])) > limit for layer in facts):
        return None
    return _Search(facts, costs, weights, limit).best()


def _check_countable(facts: Sequence[LayerFacts], weights: Sequence["_Weights"]) -> None:
    """Raise InputError where sums of bytes would not fit into 64 bits."""
    sizes, most = sizes_of(facts), max(layer.output_bytes for layer in facts)
    whole = max(one.alone(sizes) + one.beside(sizes) + 2 * one.crossing * most for one in weights)
    if whole > MOST_IN_ALL:
        raise InputError(
            f"all layers in one stage take {whole:,} bytes, and at most {MOST_IN_ALL:,} can be "
            "counted; look for a size that is too large"
        )


def tightest_cut(
    facts: Sequence[LayerFacts], costs: Sequence[float], bounds: Bounds
) -> tuple[int, ...]:
    """The best cut under the lowest limit that any cut meets; the limit of `bounds` is not read.

    Found to the byte, by halving what lies between a limit that cannot be met and one that was.
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
    """In the cut that needs least: its fullest node, and the largest layer of its stage or, where
    that is larger, of the replica."""
    cut = tightest_cut(facts, costs, bounds)
    full = _fullest(facts, cut, bounds)
    stages = [range(*ends) for ends in pairwise(cut)]
    weights = _weights(bounds)[full.stage]
    taken = {x: weights.alone(sizes_of([facts[x]])) for x in stages[full.stage]}
    following = stages[(full.stage + 1) % len(stages)]
    taken |= {x: weights.beside(sizes_of([facts[x]])) for x in following}
    layer = max(taken, key=lambda index: taken[index])
    needs, limit = full.total, bounds.limit_bytes
    return FitsNowhere(
        f"layer {layer} ({facts[layer].name}) does not fit: however the {len(facts)} layers are "
        f"cut into {bounds.grid.stages} stages, some node needs at least {needs:,} bytes "
        f"({needs / GIB:.2f} GiB) with redundancy {bounds.mode!r}, and it has {limit:,} "
        f"({limit / GIB:.2f} GiB); take more stages, smaller microbatches, less redundancy or more "
        "memory",
        layer=layer,
        needs_bytes=needs,
        limit_bytes=limit,
    )


def _weights(bounds: Bounds) -> list["_Weights"]:
    return [_Weights.of(c) for c in stage_counts(bounds.grid, bounds.shape, bounds.mode)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """What a byte of each kind adds to a node: the definition of `StageCounts`, asked for one."""

    parameters: int
    activations: int
    crossing: int
    following_parameters: int
    following_activations: int

    @classmethod
    def of(cls, counts: StageCounts) -> "_Weights":
        def total(own: tuple[int, int], following: tuple[int, int], crossing: int) -> int:
            held = [Sizes(parameters=p, activations=a) for p, a in (own, following)]
            return counts.bytes_of(held[0], held[1], crossing_bytes=crossing).total

        return cls(
            parameters=total((1, 0), (0, 0), 0),
            activations=total((0, 1), (0, 0), 0),
            crossing=total((0, 0), (0, 0), 1),
            following_parameters=total((0, 0), (1, 0), 0),
            following_activations=total((0, 0), (0, 1), 0),
        )

    def alone(self, sizes: Sizes) -> int:
        """Of a stage of this size, whatever is beside it."""
        return self.parameters * sizes.parameters + self.activations * sizes.activations

    def beside(self, sizes: Sizes) -> int:
        """Of a next stage of this size."""
        return (
            self.following_parameters * sizes.parameters
            + self.following_activations * sizes.activations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The bytes of a stage's node as F(i) + G(j) + H(k), by layer index."""

    first: Ints
    stop: Ints
    following: Ints


class _Search:
    """One search for a cut. Tables of a stage have a row for each layer it may begin with (row r
    of stage s: layer s + r, for each stage needs one) and a column for each number of layers."""

    def __init__(
        self,
        facts: Sequence[LayerFacts],
        costs: Sequence[float],
        weights: Sequence[_Weights],
        limit: int,
    ) -> None:
        self._stages, self._layers = len(weights), len(facts)
        self._rows = self._layers - self._stages + 1
        parts = _parts(facts, weights)
        before = np.array([0.0, *accumulate(costs)])
        self._most = _most_layers(facts, weights[-1], limit, self._rows)
        self._widths = np.arange(self._most + 1)
        rows = np.arange(self._rows)
        ends = rows[:, None] + self._widths
        whole = (ends > rows[:, None]) & (ends <= self._rows)
        self._ends = np.where(whole, ends, 0)
        self._next_row = np.where(whole & (ends < self._rows + 1), ends - 1, 0)
        self._own = [self._costs(before, s, whole) for s in range(self._stages)]
        self._room = [self._rooms(parts[s], s, whole, limit) for s in range(self._stages - 1)]
        self._last = parts[-1].first[self._stages - 1 : self._layers]
        own = int(parts[-1].stop[self._layers])
        # What the replica of the first stage leaves to the beginning of the last.
        left = limit - own - parts[-1].following[: self._most + 1]
        self._allowed = (self._last[None, :] <= left[:, None]).sum(axis=1)

    def _costs(self, before: Floats, stage: int, whole: NDArray[np.bool_]) -> Floats:
        here = before[stage : stage + self._rows]
        stop = before[stage + self._ends]
        return np.where(whole, stop - here[:, None], INF)

    def _rooms(
        self, parts: _Parts, stage: int, whole: NDArray[np.bool_], limit: int
    ) -> NDArray[np.intp]:
        """The most layers that the next stage may have."""
        first = parts.first[stage : stage + self._rows]
        ends = stage + self._ends
        left = limit - first[:, None] - parts.stop[ends]
        farthest = np.searchsorted(parts.following, left, side="right") - 1
        room = np.clip(farthest - ends, 0, self._most)
        out: NDArray[np.intp] = np.where(whole, room, 0)
        return out

    def best(self) -> tuple[int, ...] | None:
        """The cut, or None if none fits."""
        slowest = self._least(self._own, np.maximum)
        if slowest is None:
            return None
        limit = slowest[0]
        squares = [np.where(own <= limit, own * own, INF) for own in self._own]
        found = self._least(squares, np.add)
        if found is None:
            raise ValueError(f"no cut has the slowest stage {limit} that one was found for")
        return self._walk(found[1], found[2])

    def _least(
        self, own: Sequence[Floats], combine: np.ufunc
    ) -> tuple[float, int, list[Floats]] | None:
        """The least value, the layers of the first stage, and the tables: branch and bound over
        the first stage, see the head of this file."""
        bound = np.full(self._most + 1, -INF)
        exact = np.zeros(self._most + 1, dtype=bool)
        bound[0], exact[0] = INF, True
        last: tuple[int, list[Floats]] = (-1, [])
        layers = 1
        while not exact[layers]:
            allowed = int(self._allowed[layers])
            last = (allowed, self._tables(own, combine, layers, allowed))
            values = last[1][0][0]
            fewer = self._allowed <= allowed
            bound[fewer] = np.maximum(bound[fewer], values[fewer])
            exact |= self._allowed == allowed
            layers = int(np.argmin(bound))
        value = float(bound[layers])
        if value == INF:
            return None
        if last[0] != self._allowed[layers]:
            last = (0, self._tables(own, combine, layers, int(self._allowed[layers])))
        return value, layers, last[1]

    def _tables(
        self, own: Sequence[Floats], combine: np.ufunc, layers: int, allowed: int
    ) -> list[Floats]:
        """Of each stage, the least value of it and all after it, for a first stage of `layers`
        layers: with as many beginnings of the last stage as are `allowed`."""
        least = np.sort(self._last)[allowed - 1] if allowed else np.iinfo(np.int64).min
        rows = np.arange(self._rows)
        rest = self._rows - rows
        fits = (self._last <= least) & (rest <= self._most) & (allowed > 0)
        values = np.full((self._rows, self._most + 1), INF)
        values[rows[fits], rest[fits]] = own[-1][rows[fits], rest[fits]]
        tables = [values]
        for stage in range(self._stages - 2, -1, -1):
            following = np.minimum.accumulate(values, axis=1)
            values = combine(own[stage], following[self._next_row, self._room[stage]])
            tables.append(values)
        return tables[::-1]

    def _walk(self, layers: int, tables: Sequence[Floats]) -> tuple[int, ...]:
        """Of all cuts of the least value the first in dictionary order."""
        cut, row = [0, layers], layers - 1
        room = int(self._room[0][0, layers])
        for stage in range(1, self._stages):
            layers = int(np.argmin(tables[stage][row, : room + 1]))
            if stage < self._stages - 1:
                room = int(self._room[stage][row, layers])
                row += layers - 1
            cut.append(cut[-1] + layers)
        return tuple(cut)


def _parts(facts: Sequence[LayerFacts], weights: Sequence[_Weights]) -> list[_Parts]:
    up_to = [
        Sizes(parameters=p, activations=a)
        for p, a in zip(
            accumulate((FLOAT_BYTES * layer.parameters for layer in facts), initial=0),
            accumulate((layer.activation_bytes for layer in facts), initial=0),
            strict=True,
        )
    ]
    # What crosses a cut before layer i; at the ends of the model nothing does.
    crossing = np.array([0, *(layer.output_bytes for layer in facts[:-1]), 0], dtype=np.int64)
    out = []
    for stage, weight in enumerate(weights):
        own = np.array([weight.alone(sizes) for sizes in up_to], dtype=np.int64)
        following = np.array([weight.beside(sizes) for sizes in up_to], dtype=np.int64)
        crosses = weight.crossing * crossing
        # The stage after the last one begins at layer 0.
        taken_off = following if stage < len(weights) - 1 else 0
        out.append(_Parts(first=crosses - own, stop=crosses + own - taken_off, following=following))
    return out


def _most_layers(facts: Sequence[LayerFacts], lightest: _Weights, limit: int, rows: int) -> int:
    """No stage can have more: by what each layer takes on the last stage, which holds the fewest
    microbatches."""
    alone = (lightest.alone(sizes_of([layer])) for layer in facts)
    own = np.array([*accumulate(alone, initial=0)], dtype=np.int64)
    stops: NDArray[Any] = np.searchsorted(own, own[:-1] + limit, side="right") - 1
    return max(1, min(rows, int((stops - np.arange(len(facts))).max())))
