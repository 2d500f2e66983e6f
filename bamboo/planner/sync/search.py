"""Searches the strategies of a job on paper: kind, owner and bucket of each group of parameters.

Rule: priced by `price` alone. A descent finds a good strategy; then branch and bound over groups,
the most bytes first, prices what could still be better (Land and Doig, 1960). A bound counts what
links must carry at least, whatever the groups that are not yet decided become.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import prod

import numpy as np

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.builders import BOUNDS, Best, Group, Priced, Pricing, choices, grouped
from bamboo.planner.sync.costs import Counts
from bamboo.planner.sync.flows import Figures, rates
from bamboo.planner.sync.situation import Situation
from bamboo.topology.sync import Sync, SyncEntry, on_grid

CLOSE = 0.002
"""A strategy is not priced if its bound leaves less than this share to be won."""
DESCENT = 0.5
"""The share of the evaluations that the descent may take."""
FRONTIER = 20_000
"""The most partial strategies for which a bound is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Groups of like parameters, and how each may be synchronised."""

    groups: tuple[Group, ...]
    options: tuple[tuple[SyncEntry, ...], ...]
    """Of each group."""

    @property
    def size(self) -> int:
        """How many strategies there are."""
        return prod(len(some) for some in self.options)

    def entries(self, chosen: Sequence[int]) -> dict[str, SyncEntry]:
        """The entries of a strategy, by the number of each group's option."""
        return {
            one.name: self.options[place][number]
            for place, number in enumerate(chosen)
            for one in self.groups[place]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found."""

    sync: Sync
    best: Priced
    evaluations: int
    """Strategies that were priced."""
    size: int
    """Strategies that there are."""
    proven: bool
    """Whether none of those that were not priced could be better by more than `CLOSE`."""


def space_of(
    facts: Sequence[ParameterFacts],
    situation: Situation,
    *,
    bounds: Sequence[int | None] = BOUNDS,
) -> Space:
    """Every kind, owner and bound of a bucket for each group, the group with most bytes first."""
    groups = sorted(grouped(facts, situation), key=lambda own: -sum(one.bytes for one in own))
    some = bounds if situation.pipelines > 1 else (None,)
    return Space(
        groups=tuple(groups),
        options=tuple(
            tuple(
                replace(choice, bucket=bound)
                for choice in choices(own, situation)
                for bound in some
            )
            for own in groups
        ),
    )


def search(
    facts: Sequence[ParameterFacts],
    situation: Situation,
    *,
    evaluations: int,
    bounds: Sequence[int | None] = BOUNDS,
) -> SearchResult:
    """The best strategy of those that it prices, `evaluations` at most, and one at least."""
    pricing = Pricing([one for one in facts if one.trained], situation)
    space = space_of(pricing.facts, situation, bounds=bounds)
    found = _Found(pricing, space, evaluations)
    found.descend(round(DESCENT * evaluations))
    proven = found.branch(_Bounds(space, situation))
    return SearchResult(
        sync=pricing.sync(found.best),
        best=found.best,
        evaluations=pricing.evaluations,
        size=space.size,
        proven=proven,
    )


class _Found:
    """The best strategy so far."""

    def __init__(self, pricing: Pricing, space: Space, most: int) -> None:
        self._pricing = pricing
        self._space = space
        self._most = most
        self._seen: set[tuple[int, ...]] = set()
        self._best: Best | None = None
        self._chosen: tuple[int, ...] = ()

    def price(self, chosen: tuple[int, ...]) -> bool:
        """Price a strategy that was not priced before, if there is room for it; whether it is the
        best."""
        if chosen in self._seen or (self._seen and len(self._seen) >= self._most):
            return False
        self._seen.add(chosen)
        priced = self._pricing.priced(self._space.entries(chosen))
        if self._best is None:
            self._best = Best(priced)
        elif not self._best.offer(priced):
            return False
        self._chosen = chosen
        return True

    @property
    def best(self) -> Priced:
        """Of those that were priced; there is one."""
        assert self._best is not None, "the descent prices the first one, whatever it may price"
        return self._best.now

    def descend(self, most: int) -> None:
        """Begin with the best of `tree` under each bound, and change one group at a time while that
        makes it better."""
        options = self._space.options
        for bound in dict.fromkeys(entry.bucket for some in options for entry in some):
            whole = SyncEntry(bucket=bound)
            if len(self._seen) < max(1, most) and all(whole in some for some in options):
                self.price(tuple(some.index(whole) for some in options))
        improved = True
        while improved and len(self._seen) < most:
            improved = False
            for place, some in enumerate(options):
                for number in range(len(some)):
                    changed = (*self._chosen[:place], number, *self._chosen[place + 1 :])
                    if len(self._seen) < most and self.price(changed):
                        improved = True

    def branch(self, bounds: "_Bounds") -> bool:
        """Price the strategies that may be better than the best so far, in the order of their
        bounds. Whether none is left that may be better."""
        heap: list[tuple[float, tuple[int, ...]]] = [(bounds.of(()), ())]
        count = 0
        while heap:
            bound_s, chosen = heappop(heap)
            if bound_s >= self.best.price.cost_s * (1 - CLOSE):
                return True
            if len(chosen) == len(self._space.groups):
                if len(self._seen) >= self._most:
                    return False
                self.price(chosen)
                continue
            for number in range(len(self._space.options[len(chosen)])):
                longer = (*chosen, number)
                count += 1
                if count > FRONTIER:
                    return False
                heappush(heap, (bounds.of(longer), longer))
        return True


class _Bounds:
    """Lower bounds of a step's time, by what links carry. No byte leaves before the last backward
    of a stage has passed the stage's highest layer, and a group that is not decided yet takes on
    each link at least what the least of its options takes."""

    def __init__(self, space: Space, situation: Situation) -> None:
        self._situation = situation
        counts = Counts(situation)
        self._stages = [situation.stage_of(own[0].layer) for own in space.groups]
        self._links_s: list[list[Figures]] = []
        """For each option of each group, seconds on each link, shape (D, D)."""
        for own, some in zip(space.groups, space.options, strict=True):
            per_byte, _ = rates(situation, situation.stage_of(own[0].layer))
            found: Mapping[SyncEntry, Figures] = {
                entry: sum(
                    (counts.exchange(one, on_grid(entry, *_on(situation))).bytes for one in own),
                    np.zeros_like(per_byte),
                )
                * per_byte
                for entry in some
            }
            self._links_s.append([found[entry] for entry in some])
        self._least_s = [np.min(some, axis=0) for some in self._links_s]
        self._hidden_s = [
            max(situation.passed_s[first:stop], default=0.0)
            for first, stop in zip(situation.cut, situation.cut[1:], strict=False)
        ]
        self._ends_s = situation.ends_s or (0.0,) * situation.stages

    def of(self, chosen: Sequence[int]) -> float:
        """The least step of any strategy that begins with these options."""
        totals = [np.zeros_like(self._least_s[0]) for _ in range(self._situation.stages)]
        for place, stage in enumerate(self._stages):
            decided = place < len(chosen)
            totals[stage] = totals[stage] + (
                self._links_s[place][chosen[place]] if decided else self._least_s[place]
            )
        after_s = max(self._situation.after_s, default=0.0)
        return after_s + max(
            end_s + max(0.0, float(total.max()) - hidden_s)
            for end_s, total, hidden_s in zip(self._ends_s, totals, self._hidden_s, strict=True)
        )


def _on(situation: Situation) -> tuple[int, tuple[int, ...]]:
    return situation.pipelines, situation.zones
