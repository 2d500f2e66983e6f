"""The best strategy in each of many cases of a fleet, one after the other.

Rule: a descent, as in `search`: one group of parameters is changed at a time, while the cost falls.
All cases are of one grid. So what was computed of a strategy for one case (`Repriced`) serves all
later ones, and a descent begins with the best of all strategies that any case has led to.
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
"""Bounds of a bucket that are tried: one bucket for a stage, and one for each layer."""
ROUNDS = 3
"""How often a descent goes through all groups at most."""
Chosen = tuple[int, ...]
"""A strategy of a `Space`: for each group, the number of its option."""


class Descents:
    """Descents on one grid."""

    def __init__(self, facts: Sequence[ParameterFacts], situation: Situation) -> None:
        self._pricing = Pricing([one for one in facts if one.trained], situation)
        self._space = space_of(self._pricing.facts, situation, bounds=BOUNDS)
        self._repriced: dict[Chosen, Repriced] = {}
        wholes = [SyncEntry(bucket=bound) for bound in BOUNDS]
        options = self._space.options
        self._starts = [
            tuple(some.index(whole) for some in options)
            for whole in wholes
            if all(whole in some for some in options)
        ]
        """Every parameter by `tree`, with each bound."""
        self._owned = [] if situation.pipelines < 3 else self._without_one(situation.pipelines)

    def _without_one(self, pipelines: int) -> list[Chosen]:
        """For each pipeline, a start in which it owns nothing: each group goes to that other one
        which has the fewest bytes so far. Changes of single groups hardly lead there from `tree`,
        because each on its own makes a step longer."""
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
        pools = ([*dict.fromkeys((*self._starts, *self._repriced))], self._owned)
        _, chosen = min(self._descended(pool, case) for pool in pools if pool)
        return self._pricing.sync_of(self._space.entries(chosen))

    def _descended(self, pool: Sequence[Chosen], case: Case) -> tuple[float, Chosen]:
        """The cost in seconds and the strategy that a descent from the best of a pool ends with."""
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
            if one not in self._repriced:
                resolved = self._pricing.resolved(self._space.entries(one))
                self._repriced[one] = Repriced(resolved)
        repriced = [self._repriced[one] for one in some]
        billed_s = np.array([one.billed_s for one in repriced])
        return np.asarray(np.exp(log_steps(repriced, [case])[:, 0]) + billed_s)
