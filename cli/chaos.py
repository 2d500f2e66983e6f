"""Which preemptions the launcher orders, and when: listed ones with a notice, and random ones.

Pure but for its memory of what it has ordered. Listed kills without a notice are not here: they
happen inside the worker, at their exact phase. Random ones are a Poisson process over the whole
cluster, drawn from the job's seed, so the same job is hit at the same times of its run.
"""

import random
from dataclasses import dataclass

from bamboo.config.tree import ChaosConfig
from bamboo.core.state import Phase, State
from bamboo.ids import InstanceId
from bamboo.topology.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Take this instance away, `notice_s` after its notice (0: no notice)."""

    instance: InstanceId
    notice_s: float


class Chaos:
    """Gives each order once. `clock` times are seconds of the launcher's clock."""

    def __init__(self, config: ChaosConfig) -> None:
        self._config = config
        self._listed = [kill for kill in config.kill if kill.notice_s > 0]
        self._chance = random.Random(config.seed)
        self._next_at_s: float | None = None

    def due(self, state: State, *, steps_finished: int, now_s: float) -> list[Order]:
        """The orders of this moment; none while the cluster forms or after it ended."""
        if state.assignment is None or state.phase in (Phase.FORMING, Phase.FINISHED):
            return []
        return self._due_listed(state, steps_finished) + self._due_random(state, now_s)

    def _due_listed(self, state: State, steps_finished: int) -> list[Order]:
        orders = []
        for kill in [k for k in self._listed if k.step <= steps_finished]:
            self._listed.remove(kill)
            assert state.assignment is not None
            owner = state.assignment.owner(Slot(pipeline=kill.pipeline, stage=kill.stage))
            node = state.node(owner)
            if node is not None and node.status.live:
                orders.append(Order(instance=node.instance, notice_s=kill.notice_s))
        return orders

    def _due_random(self, state: State, now_s: float) -> list[Order]:
        rate_per_s = self._config.kills_per_hour / 3600
        if rate_per_s <= 0:
            return []
        if self._next_at_s is None:
            self._next_at_s = now_s + self._chance.expovariate(rate_per_s)
        orders = []
        while self._next_at_s <= now_s:
            self._next_at_s += self._chance.expovariate(rate_per_s)
            which, noticed = self._chance.random(), self._chance.random()
            live = sorted(state.live_nodes(), key=lambda node: node.id)
            if live:
                notice_s = self._config.notice_s if noticed < self._config.notice_share else 0.0
                node = live[int(which * len(live))]
                orders.append(Order(instance=node.instance, notice_s=notice_s))
        return orders
