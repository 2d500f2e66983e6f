"""Which preemptions the launcher orders, and when: listed ones with a notice, and random ones.

Pure, except that it remembers what it has ordered. Listed kills without a notice happen inside the
worker, at their exact phase, and not here. Random ones are a Poisson process over the whole
cluster, drawn from the job's seed, so the same job loses nodes at the same times of its run.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass

from bamboo.config.tree import ChaosConfig
from bamboo.core.state import Phase, State
from bamboo.ids import InstanceId
from bamboo.topology.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Preempt this instance, `notice_s` after its notice (0: no notice)."""

    instance: InstanceId
    notice_s: float
    listed: int | None = None
    """Its index in the job's list; None for a random one."""


class Chaos:
    """Gives each order once, even over several launchers of a run: a later one gets the indices of
    the listed preemptions that were `ordered`. Times are Unix times."""

    def __init__(self, config: ChaosConfig, *, ordered: Collection[int] = ()) -> None:
        self._config = config
        self._listed = {
            place: kill
            for place, kill in enumerate(config.kill)
            if kill.notice_s > 0 and place not in ordered
        }
        self._chance = random.Random(config.seed)
        self._next_at_s: float | None = None

    def begin(self, at_s: float) -> None:
        """Random preemptions are counted from `at_s`. Only the first call has an effect."""
        if self._next_at_s is None and self._rate_per_s > 0:
            self._next_at_s = at_s + self._chance.expovariate(self._rate_per_s)

    def skip(self, until_s: float) -> None:
        """Leave out random preemptions before `until_s`. An earlier launcher ordered them, or none
        was there to order them."""
        if self._next_at_s is not None:
            self._draw(until_s)

    def due(self, state: State, *, steps_finished: int, now_s: float) -> list[Order]:
        """The orders that are due now; none while the cluster forms or after the run ended."""
        if state.assignment is None or state.phase in (Phase.FORMING, Phase.FINISHED):
            return []
        return self._due_listed(state, steps_finished) + self._due_random(state, now_s)

    def _due_listed(self, state: State, steps_finished: int) -> list[Order]:
        orders = []
        for place, kill in [p for p in self._listed.items() if p[1].step <= steps_finished]:
            del self._listed[place]
            assert state.assignment is not None
            slot = Slot(pipeline=kill.pipeline, stage=kill.stage)
            if slot not in state.assignment.grid.slots():
                continue  # the run goes on in another layout, which has no such slot
            node = state.node(state.assignment.owner(slot))
            if node is not None and node.status.live:
                orders.append(Order(instance=node.instance, notice_s=kill.notice_s, listed=place))
        return orders

    def _due_random(self, state: State, now_s: float) -> list[Order]:
        self.begin(now_s)
        orders = []
        for which, noticed in self._draw(now_s):
            live = sorted(state.live_nodes(), key=lambda node: node.id)
            if live:
                notice_s = self._config.notice_s if noticed < self._config.notice_share else 0.0
                node = live[int(which * len(live))]
                orders.append(Order(instance=node.instance, notice_s=notice_s))
        return orders

    @property
    def _rate_per_s(self) -> float:
        return self._config.kills_per_hour / 3600

    def _draw(self, now_s: float) -> list[tuple[float, float]]:
        """Two random numbers for each random kill up to `now_s`: one chooses the node, one whether
        it gets a notice."""
        drawn = []
        while self._next_at_s is not None and self._next_at_s <= now_s:
            self._next_at_s += self._chance.expovariate(self._rate_per_s)
            drawn.append((self._chance.random(), self._chance.random()))
        return drawn
