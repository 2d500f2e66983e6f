"""The best strategy in each of many cases of slowness, one after the other.

Rule: a descent, as in `search`, by groups of parameters. All cases are of one grid, and whatever
was laid out for one of them is priced again for the next, which begins with the best of it.
"""

from collections.abc import Sequence

import numpy as np

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.builders import Pricing
from bamboo.planner.sync.flows import Figures
from bamboo.planner.sync.repriced import Repriced, Slows, steps_s
from bamboo.planner.sync.search import CLOSE, space_of
from bamboo.planner.sync.situation import Situation
from bamboo.topology.sync import Sync, SyncEntry

BOUNDS = (None, 0)
"""Bounds of a bucket that are tried: whole, and each parameter for itself."""
ROUNDS = 3
"""Times that a descent goes through all groups, at most."""
Chosen = tuple[int, ...]
"""The number of each group's option."""


class Descents:
    """Strategies of one grid, laid out once."""

    def __init__(self, facts: Sequence[ParameterFacts], situation: Situation) -> None:
        self._pricing = Pricing([one for one in facts if one.trained], situation)
        self._space = space_of(self._pricing.facts, situation, bounds=BOUNDS)
        self._laid: dict[Chosen, Repriced] = {}
        wholes = [SyncEntry(bucket=bound) for bound in BOUNDS]
        options = self._space.options
        self._starts = [
            tuple(some.index(whole) for some in options)
            for whole in wholes
            if all(whole in some for some in options)
        ]

    def best(self, slow: Slows) -> Sync:
        """The strategy that costs least where this is slow, as far as the descent finds it."""
        pool = [*dict.fromkeys((*self._starts, *self._laid))]
        costs = self._costs_s(pool, slow)
        chosen, cost_s = pool[int(costs.argmin())], float(costs.min())
        for _ in range(ROUNDS):
            before_s = cost_s
            for place, some in enumerate(self._space.options):
                near = [(*chosen[:place], x, *chosen[place + 1 :]) for x in range(len(some))]
                costs = self._costs_s(near, slow)
                if costs.min() < cost_s * (1 - CLOSE):
                    chosen, cost_s = near[int(costs.argmin())], float(costs.min())
            if cost_s == before_s:
                break
        return self._pricing.sync_of(self._space.entries(chosen))

    def _costs_s(self, some: Sequence[Chosen], slow: Slows) -> Figures:
        for one in some:
            if one not in self._laid:
                resolved = self._pricing.resolved(self._space.entries(one))
                self._laid[one] = Repriced(resolved)
        laid = [self._laid[one] for one in some]
        billed_s = np.array([one.billed_s for one in laid])
        return np.asarray(steps_s(laid, [slow])[:, 0] + billed_s)
