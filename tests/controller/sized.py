"""An autoscaler under test: told of a run at a steady pace, and asked what follows.

Rule: states come from the core's own transitions; nothing of them is made up.
"""

from typing import Any

from bamboo.billing.money import Rented
from bamboo.config.tree import (
    AutoscaleConfig,
    BudgetConfig,
    CheckpointConfig,
    CloudConfig,
    ClusterConfig,
    JobConfig,
    TrainConfig,
)
from bamboo.controller.autoscaling import Autoscaler
from bamboo.core.events import Event
from bamboo.core.machine import transition
from bamboo.core.state import Policy, State
from bamboo.planner.fleet.scaler import SETTLING, Turn
from bamboo.planner.fleet.scaling_curve import LEAST
from bamboo.runs.books import Booked
from bamboo.runs.progress import Progress
from tests.controller.world import START_S
from tests.core.build import forming, joined

POLICY = Policy(cuts=((0, 4), (0, 2, 4)), virtual_nodes=4, pipelines=3, stages=2)


def job(*, standbys: int = 0, budget: BudgetConfig | None = None, **autoscale: Any) -> JobConfig:
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        train=TrainConfig(steps=10_000, batch=10, virtual_nodes=4),
        cluster=ClusterConfig(stages=2, max_pipelines=3, standbys=standbys),
        cloud=CloudConfig(pool_out_s=30.0),
        autoscale=AutoscaleConfig(enabled=True, **autoscale),
        budget=budget or BudgetConfig(),
    )


def after(state: State, *events: Event) -> State:
    for event in events:
        state = transition(state, event, now_s=0.0, policy=POLICY).state
    return state


def trains(*names: str, stages: int = 2) -> State:
    """Nodes that joined one by one; those beyond the first grid stand by or begin a new layout."""
    return after(forming(1, stages), *(joined(name) for name in names))


def of_three_pipelines() -> State:
    state = forming(3, 2)
    return after(state, *(joined(f"{name}.1") for name in "abcdef"))


def rented(*instances: str) -> list[Rented]:
    return [
        Rented(
            instance=instance,
            instance_type="g4dn.xlarge",
            zone="a",
            market="spot",
            started_at_s=START_S + number,
            usd_per_hour=1.0,
            on_demand_usd_per_hour=2.0,
        )
        for number, instance in enumerate(instances)
    ]


def progress(state: State, *, step: int = 0, now_s: float = START_S, usd: float = 0.0) -> Progress:
    return Progress(
        run="r",
        steps=10_000,
        tokens_per_step=80,
        state=state,
        started_at_s=START_S,
        now_s=now_s,
        step=step,
        usd=usd,
    )


class Told:
    """An autoscaler that is told of a run at a steady pace."""

    def __init__(
        self,
        config: JobConfig | None = None,
        booked: Booked | None = None,
        *,
        led_before_s: float = 0.0,
    ) -> None:
        self.config = config or job()
        booked = booked or Booked()
        self.scaler = Autoscaler(self.config, POLICY, booked, led_before_s=led_before_s)
        self.now_s, self.step = START_S, 0

    def trains(self, state: State, *, step_s: float, steps: int = LEAST + SETTLING + 1) -> None:
        """So many steps in this state, which was decided just now."""
        self.scaler.decided(state, self.now_s)
        for _ in range(steps):
            self.now_s += step_s
            self.scaler.stepped(self.step, self.now_s)
            self.step += 1

    def turn(self, state: State, *instances: str, usd: float = 0.0) -> Turn:
        here = instances or tuple(n.instance for n in state.live_nodes())
        seen = progress(state, step=self.step, now_s=self.now_s, usd=usd)
        return self.scaler.turn(seen, rented(*here), now_s=self.now_s)


def grown_in_vain() -> tuple[Told, State]:
    """Four nodes train as slowly as two did."""
    told, state = Told(), trains("a.1", "b.1")
    told.trains(state, step_s=1.0)
    told.turn(state)
    larger = after(forming(2, 2), *(joined(f"{name}.1") for name in "abcd"))
    told.trains(larger, step_s=0.99)
    return told, larger


def booked(told: Told, *, at_s: float, part: int = 1) -> Booked:
    return Booked(scaling=told.scaler.to_body(), scaled_at_s=at_s, part=part)
