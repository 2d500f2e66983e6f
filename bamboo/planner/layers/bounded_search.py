"""The search for the best cut under a node's memory; `bounded` says what is searched for, and calls
it.

Rule: exact and deterministic. It is the only file of this package that needs numpy arrays, so a
job that fits without a search never loads them.

The method is dynamic programming over layers, from the last stage to the first, as PipeDream's
(Narayanan et al., SOSP 2019) and DAPPLE's planner (Fan et al., PPoPP 2021) cut a pipeline. There a
stage is judged by its own layers. Here its node also holds a replica of the next stage, so its
bytes depend on three cuts: its first layer i, its end j, and the end k of the next stage. Two
observations make this exact:

- **Neighbours.** The bytes are linear in the sizes of the layers (`StageCounts.bytes_of`), so they
  split into F(i) + G(j) + H(k), with H growing in k, and A(i, j): what computing the stage's
  largest layer again takes, or the model's where a takeover may bring it in. The state is a whole
  stage (i, j); it may be followed by any stage (j, k) up to the largest k with
  H(k) <= limit - F(i) - G(j) - A(i, j). The best of those is one look-up in the running minimum of
  the row of j, so a state costs O(1), and a pass over all stages O(stages * layers^2).
- **The ring.** The last node holds a replica of the first stage, which ends at c. For a given c the
  last stage may begin at any i whose F(i) is at most what c leaves. These sets of beginnings are
  nested: the larger c, the smaller the set. A pass with the set of one c is exact for it (and for
  all c with the same set), and a lower bound for every larger c. The search starts with the largest
  set and continues with the c of the least bound, until that bound is exact. This branch and bound
  ends with the optimum because no bound exceeds its c's value. Mostly one or two passes suffice;
  there are never more passes than sets.

The search runs twice: for the slowest stage, and with that as a limit for the sum of squares.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bamboo.planner.layers.facts import FLOAT_BYTES, LayerFacts
from bamboo.planner.layers.memory import Weights, Widest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
INF = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The bytes of a stage's node as F(i) + G(j) + H(k), by layer index."""

    first: Ints
    stop: Ints
    following: Ints


class Search:
    """One search for a cut. The table of a stage has a row for each layer at which it may begin
    (row r of stage s is layer s + r, because each earlier stage needs one) and a column for each
    number of layers."""

    def __init__(
        self,
        facts: Sequence[LayerFacts],
        costs: Sequence[float],
        weights: Sequence[Weights],
        limit: int,
    ) -> None:
        self._stages = len(weights)
        self._layers = len(facts)
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
        anywhere = np.full(len(facts), Widest.of(facts).again, dtype=np.int64)
        agains = [
            anywhere
            if weight.widest_again
            else np.array([weight.counts.again_bytes(layer) for layer in facts], dtype=np.int64)
            for weight in weights
        ]
        self._room = [
            self._rooms(parts[s], s, whole, limit - self._most_again(agains[s], s))
            for s in range(self._stages - 1)
        ]
        most_again = np.maximum.accumulate(agains[-1][::-1])[::-1]
        self._last = (parts[-1].first[:-1] + most_again)[self._stages - 1 :]
        own = int(parts[-1].stop[self._layers])
        # What the replica of the first stage leaves for the beginning of the last.
        left = limit - own - parts[-1].following[: self._most + 1]
        self._allowed = (self._last[None, :] <= left[:, None]).sum(axis=1)

    def _costs(self, before: Floats, stage: int, whole: NDArray[np.bool_]) -> Floats:
        here = before[stage : stage + self._rows]
        stop = before[stage + self._ends]
        return np.where(whole, stop - here[:, None], INF)

    def _most_again(self, again: Ints, stage: int) -> Ints:
        """The largest of `again` in a stage, by its first layer and the number of its layers."""
        layers = np.minimum(
            stage + np.arange(self._rows)[:, None] + self._widths - 1, len(again) - 1
        )
        values = np.where(self._widths > 0, again[layers], 0)
        out: Ints = np.maximum.accumulate(values, axis=1)
        return out

    def _rooms(
        self, parts: _Parts, stage: int, whole: NDArray[np.bool_], limit: Ints
    ) -> NDArray[np.intp]:
        """The most layers that the next stage may have. `limit`: by row and width."""
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
        """For each stage, the least value of it and all stages after it, if the first stage has
        `layers` layers and the last one may begin at `allowed` layers."""
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
        """The first in dictionary order among all cuts of the least value."""
        cut, row = [0, layers], layers - 1
        room = int(self._room[0][0, layers])
        for stage in range(1, self._stages):
            layers = int(np.argmin(tables[stage][row, : room + 1]))
            if stage < self._stages - 1:
                room = int(self._room[stage][row, layers])
                row += layers - 1
            cut.append(cut[-1] + layers)
        return tuple(cut)


def _parts(facts: Sequence[LayerFacts], weights: Sequence[Weights]) -> list[_Parts]:
    parameters, moments, statistics, replica, activations, again = (
        _summed(sizes)
        for sizes in (
            (FLOAT_BYTES * layer.parameters for layer in facts),
            (layer.moment_bytes + layer.frozen_bytes for layer in facts),
            (FLOAT_BYTES * layer.statistics for layer in facts),
            (layer.replica_bytes for layer in facts),
            (layer.held_bytes for layer in facts),
            (layer.again_bytes for layer in facts),
        )
    )
    # What crosses a cut before layer i, forward and back; nothing does at the ends of the model.
    there, back = (
        np.array([0, *sizes, 0], dtype=np.int64)
        for sizes in (
            [layer.stashed_bytes for layer in facts[:-1]],
            [layer.stashed_back_bytes for layer in facts[:-1]],
        )
    )
    widest = Widest.of(facts).crossing
    out = []
    for stage, weight in enumerate(weights):
        own = (
            weight.parameters * parameters
            + weight.moments * moments
            + weight.statistics * statistics
            + weight.activations * activations
            + _summed(weight.counts.exchanged_bytes([layer]) for layer in facts)
        )
        taken = (weight.counts.taken_bytes([layer]) for layer in facts)
        following = (
            _summed(taken)
            + weight.following_replica * replica
            + weight.following_activations * activations
            + weight.following_again * again
        )
        # The stage after the last one begins at layer 0.
        taken_off = following if stage < len(weights) - 1 else 0
        first = weight.crossing * back - own + weight.widest_crossing * widest
        stop = weight.crossing * there + own - taken_off
        out.append(_Parts(first=first, stop=stop, following=following))
    return out


def _summed(sizes: Iterable[int]) -> Ints:
    """The sums of the first layers, from none to all."""
    return np.array([*accumulate(sizes, initial=0)], dtype=np.int64)


def _most_layers(facts: Sequence[LayerFacts], lightest: Weights, limit: int, rows: int) -> int:
    """The most layers that any stage can have, by their bytes on the last stage, which holds the
    fewest microbatches."""
    own = _summed(lightest.alone([layer]) for layer in facts)
    stops: NDArray[Any] = np.searchsorted(own, own[:-1] + limit, side="right") - 1
    return max(1, min(rows, int((stops - np.arange(len(facts))).max())))
