"""A run in memory for the command line's tests: store, members that speak, fleet, screen, books."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from bamboo.billing.money import Rented
from bamboo.config.tree import (
    BudgetConfig,
    ChaosConfig,
    CheckpointConfig,
    ClusterConfig,
    JobConfig,
    TrainConfig,
)
from bamboo.controller.launcher import Launcher, launcher_of
from bamboo.controller.market import Market
from bamboo.controller.ports import Ports
from bamboo.coord.driver import Driver, create_run
from bamboo.coord.follow import Decision, Follower
from bamboo.coord.memory_store import MemoryStore
from bamboo.core import events
from bamboo.core.state import Attestation, Policy, State, initial_state
from bamboo.ids import InstanceId, NodeId, RunId, ZoneId
from bamboo.runs.books import Booked
from bamboo.runs.progress import Progress
from bamboo.telemetry.records import EvaluationRecord, MetricRecord
from bamboo.telemetry.samples import SamplesRecord
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot

START_S = 1_000_000.0


def job(
    *,
    steps: int = 3,
    stages: int = 4,
    chaos: ChaosConfig | None = None,
    budget: BudgetConfig | None = None,
) -> JobConfig:
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        train=TrainConfig(steps=steps, virtual_nodes=1),
        cluster=ClusterConfig(
            max_pipelines=1,
            stages=stages,
            redundancy="stash",
            forming_timeout_s=50.0,
            step_timeout_s=40.0,
        ),
        chaos=chaos or ChaosConfig(),
        budget=budget or BudgetConfig(),
        file="job.toml",
    )


class FakeFleet:
    """Instances as values; remembers what it was told."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.reconciled = 0
        self.wanted: list[int | None] = []
        self.may_start: list[int | None] = []
        self.on_reconcile: Callable[[], None] = lambda: None
        self.versions: list[int] = []
        self.terminated: list[str] = []
        self.all_terminated = 0
        self.preempted: list[tuple[str, float]] = []
        self.is_alive = True
        self.ended_at_s: dict[str, float] = {}

    def reconcile(self, state: State, *, nodes: int | None = None, new: int | None = None) -> None:
        self.on_reconcile()
        self.reconciled += 1
        self.wanted.append(nodes)
        self.may_start.append(new)
        self.versions.append(state.version)

    def terminate(self, instance: InstanceId, *, reason: str) -> None:
        self.terminated.append(instance)

    def terminate_all(self) -> None:
        self.all_terminated += 1

    def rented(self) -> Sequence[Rented]:
        return [
            Rented(
                instance=f"i-{n}",
                instance_type="g4dn.xlarge",
                zone="a",
                market="spot",
                started_at_s=START_S,
                ended_at_s=self.ended_at_s.get(f"i-{n}"),
                usd_per_hour=0.36,
                on_demand_usd_per_hour=0.72,
            )
            for n in range(4)
        ]

    def asked(self) -> Collection[InstanceId]:
        return [InstanceId(one) for one in self.terminated]

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str = "chaos") -> None:
        self.preempted.append((instance, notice_s))

    def kill_stamps_s(self) -> Mapping[str, float]:
        return {"i-2": 9.75}

    def alive(self) -> bool:
        return self.is_alive


class FakeScreen:
    """Keeps what it is shown, and drives the script: one entry of it per turn of the loop."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.notes: list[str] = []
        self.steps: list[int] = []
        self.reasons: list[str] = []

    def decided(self, progress: Progress, decision: Decision) -> None:
        self.reasons.append(decision.reason)

    def stepped(self, progress: Progress) -> None:
        self.steps.append(progress.step)

    def evaluated(self, progress: Progress) -> None:
        self.notes.append(f"evaluated after step {progress.step}")

    def turned(self, progress: Progress) -> None:
        self._world.play(progress)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def detail(self, text: str) -> None:
        self.notes.append(text)


class FakeBooks:
    def __init__(self) -> None:
        self.metrics: list[MetricRecord] = []
        self.evaluations: list[EvaluationRecord] = []
        self.used: list[SamplesRecord] = []
        self.events: list[tuple[str, Mapping[str, Any]]] = []

    def metric(self, record: MetricRecord) -> None:
        self.metrics.append(record)

    def evaluation(self, record: EvaluationRecord) -> None:
        self.evaluations.append(record)

    def samples(self, record: SamplesRecord) -> None:
        self.used.append(record)

    def attested(self, attested: Attestation) -> None:
        self.kept = attested

    def event(self, kind: str, progress: Progress, *, at_s: float, data: Mapping[str, Any]) -> None:
        self.events.append((kind, data))


class FakeWishes:
    """What the world's user asks for now."""

    def __init__(self, world: "World") -> None:
        self._world = world

    @property
    def count(self) -> int:
        return self._world.interrupts

    @property
    def leaving(self) -> bool:
        return self._world.leaves


class World:
    """`script` holds, per turn, what happens then: events, metric records, or calls."""

    def __init__(
        self,
        config: JobConfig,
        script: Sequence[Any] = (),
        *,
        policy: Policy | None = None,
        store_is_ours: bool = True,
    ) -> None:
        self.config = config
        policy = policy or Policy()
        self.clock_s = START_S
        self.interrupts = 0
        self.store = MemoryStore(RunId("r"), clock=lambda: self.clock_s)
        self.grid = Grid(pipelines=config.cluster.pipelines, stages=config.cluster.stages)
        state = initial_state(run=RunId("r"), grid=self.grid, redundancy=config.cluster.redundancy)
        assert create_run(self.store, state=state, policy=policy, documents={}, at_s=START_S)
        self.driver = Driver(self.store, policy, "world")
        self.fleet = FakeFleet(self)
        self.screen = FakeScreen(self)
        self.books = FakeBooks()
        self._script = list(script)
        self.leaves = False
        self.store_is_ours = store_is_ours
        self.pauses_s: list[float] = []
        self.launcher = self.new_launcher()

    def new_launcher(self, booked: Booked | None = None, market: Market | None = None) -> Launcher:
        """One that begins now; `booked` is what those before it have written."""
        config = self.config
        return launcher_of(
            Ports(
                append=self.driver.append,
                fleet=self.fleet,
                screen=self.screen,
                books=self.books,
                now=lambda: self.clock_s,
            ),
            store=self.store,
            follower=Follower(),
            wishes=FakeWishes(self),
            pause=self.pause,
            job=config,
            progress=Progress(
                run="r",
                steps=config.train.steps,
                tokens_per_step=config.train.batch * config.model.context,
                samples_per_step=config.train.batch,
                state=initial_state(
                    run=RunId("r"), grid=self.grid, redundancy=config.cluster.redundancy
                ),
                started_at_s=START_S,
                now_s=self.clock_s,
            ),
            store_is_ours=self.store_is_ours,
            booked=booked,
            market=market,
        )

    def pause(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)
        self.clock_s += pause_s

    def play(self, progress: Progress) -> None:
        self.clock_s += 1.0
        if not self._script:
            if not progress.finished:
                raise AssertionError(f"the script is over and the run goes on: {progress.state}")
            return
        self.do(self._script.pop(0))

    def do(self, what: Any) -> None:
        if isinstance(what, list):
            for one in what:
                self.do(one)
        elif isinstance(what, dict):
            self.store.append("metrics", json.dumps(what))
        elif callable(what):
            what()
        else:
            self.driver.append(what)


def node(number: int) -> NodeId:
    return NodeId(f"i-{number}.0")


def joined(count: int = 4) -> list[events.Event]:
    return [
        events.NodeJoined(
            node=node(n),
            instance=InstanceId(f"i-{n}"),
            zone=ZoneId("us-east-1a"),
            endpoint=f"ipc:///x/{n}",
            pid=100 + n,
        )
        for n in range(count)
    ]


def step(index: int, loss: float = 4.0, at_s: float = 0.0) -> dict[str, Any]:
    return {
        "kind": "step",
        "step": index,
        "loss": loss,
        "t_s": START_S + (at_s or index + 1),
        "tokens": 2048,
    }


def finished(step_index: int, *numbers: int) -> list[events.Event]:
    return [events.NodeFinished(node=node(n), step=step_index) for n in numbers]


def left(*numbers: int) -> list[events.Event]:
    return [events.NodeLeft(node=node(n), reason="the run is over") for n in numbers]


def lost(number: int, reporter: int) -> events.PeerLost:
    return events.PeerLost(node=node(number), reporter=node(reporter), cause="disconnect")


def caught_up(number: int, stage: int) -> events.CaughtUp:
    return events.CaughtUp(
        node=node(number),
        slot=Slot(pipeline=0, stage=stage),
        step=1,
        recomputed=2,
        already_computed=3,
        pause_s=0.041,
    )
