"""The best strategy in each of many cases of a fleet, one after the other.

Rule: a descent, as in `search`, by groups of parameters. All cases are of one grid, and whatever
was laid out for one of them is priced again for the next, which begins with the best of it.
"""

from collections.abc import Sequence

import numpy as np

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.builders import Pricing
from bamboo.planner.sync.flows import Figures
from bamboo.planner.sync.repriced import Case, Repriced, log_steps
from bamboo.planner.sync.search import CLOSE, space_of
from bamboo.planner.sync.situation import Situation
from bamboo.topology.sync import OWNER, Sync, SyncEntry

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
        self._owned = [] if situation.pipelines < 3 else self._without_one(situation.pipelines)

    def _without_one(self, pipelines: int) -> list[Chosen]:
        """For each pipeline, a start in which the others own all groups, the one with the fewest
        bytes so far the next: no change of one group alone leads there from a whole."""
        out = []
        for spared in range(pipelines):
            load = {one: 0.0 for one in range(pipelines) if one != spared}
            chosen = []
            for group, some in zip(self._space.groups, self._space.options, strict=True):
                least = min(load, key=lambda one: load[one])
                load[least] += sum(one.bytes for one in group)
                chosen.append(some.index(SyncEntry(exchange=OWNER, owner=least)))
            out.append(tuple(chosen))
        return out

    def best(self, case: Case) -> Sync:
        """The strategy that costs least in this case, as far as the descents find it."""
        pools = ([*dict.fromkeys((*self._starts, *self._laid))], self._owned)
        found = [self._descended(pool, case) for pool in pools if pool]
        _, chosen = min(found)
        return self._pricing.sync_of(self._space.entries(chosen))

    def _descended(self, pool: Sequence[Chosen], case: Case) -> tuple[float, Chosen]:
        """From the best of a pool, a group at a time; with its cost."""
        costs = self._costs_s(pool, case)
        chosen, cost_s = pool[int(costs.argmin())], float(costs.min())
        for _ in range(ROUNDS):
            before_s = cost_s
            for place, some in enumerate(self._space.options):
                near = [(*chosen[:place], x, *chosen[place + 1 :]) for x in range(len(some))]
                costs = self._costs_s(near, case)
                if costs.min() < cost_s * (1 - CLOSE):
                    chosen, cost_s = near[int(costs.argmin())], float(costs.min())
            if cost_s == before_s:
                break
        return cost_s, chosen

    def _costs_s(self, some: Sequence[Chosen], case: Case) -> Figures:
        for one in some:
            if one not in self._laid:
                resolved = self._pricing.resolved(self._space.entries(one))
                self._laid[one] = Repriced(resolved)
        laid = [self._laid[one] for one in some]
        billed_s = np.array([one.billed_s for one in laid])
        return np.asarray(np.exp(log_steps(laid, [case])[:, 0]) + billed_s)
