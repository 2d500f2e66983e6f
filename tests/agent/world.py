"""A run in memory with an agent on it: a metadata service of values, and a worker of values."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bamboo.agent.config import AgentConfig
from bamboo.agent.main import run_agent
from bamboo.config.load import job_to_json
from bamboo.config.tree import ClusterConfig, JobConfig
from bamboo.coord.driver import Driver, create_run
from bamboo.coord.memory_store import MemoryStore
from bamboo.core.events import NodeJoined
from bamboo.core.state import Policy, State, initial_state
from bamboo.ids import InstanceId, NodeId, RunId, ZoneId, node_id
from bamboo.ports import Identity, Notice, Store, WorkerStarter
from bamboo.topology.grid import Grid
from testbed.waiting import wait_until

RUN = RunId("test-run")
POLICY = Policy(suspect_s=30.0, gone_s=60.0)
"""So patient that no test meets it by accident, however slow the machine."""
HASTY = Policy(suspect_s=0.2, gone_s=0.5)
JOB = JobConfig(cluster=ClusterConfig(beat_ms=20, stages=2))


@dataclass(slots=True)
class Service:
    """A metadata service whose notice a test sets."""

    me: Identity
    pending: Notice | None = None
    advice: bool = False

    def identity(self) -> Identity:
        return self.me

    def notice(self) -> Notice | None:
        return self.pending

    def advised(self) -> bool:
        return self.advice


@dataclass(slots=True)
class Worker:
    """A worker that ends when a test says so."""

    pid: int
    config: Mapping[str, str]
    status: int | None = None
    killed: bool = False

    def poll(self) -> int | None:
        return self.status

    def kill(self) -> None:
        if self.status is None:
            self.killed = True
            self.status = -9


@dataclass(slots=True)
class Starter:
    """Keeps every worker it was asked for."""

    workers: "queue.Queue[Worker]" = field(default_factory=queue.Queue)
    count: int = 0

    def start(self, *, config: Mapping[str, str]) -> Worker:
        self.count += 1
        worker = Worker(self.count, dict(config))
        self.workers.put(worker)
        return worker


def make_store(*, policy: Policy = POLICY, clock: Callable[[], float] = time.time) -> MemoryStore:
    """A run of one pipeline of two stages, forming."""
    store = MemoryStore(RUN, clock=clock)
    state = initial_state(run=RUN, grid=Grid(pipelines=1, stages=2), redundancy="stash")
    documents = {"job": job_to_json(JOB)}
    assert create_run(store, state=state, policy=policy, documents=documents, at_s=0.0)
    return store


def join(store: Store, number: int) -> NodeId:
    """The worker of instance `number` says that it is there."""
    instance = InstanceId(f"i-{number}")
    node = node_id(instance, 0)
    Driver(store, POLICY, node).append(
        NodeJoined(
            node=node,
            instance=instance,
            zone=ZoneId("us-east-1a"),
            endpoint=f"ipc:///nowhere/{number}",
            pid=number,
        )
    )
    return node


class Agent:
    """`run_agent` in a thread, for instance 1 of the run in `store`."""

    def __init__(
        self,
        store: Store,
        path: Path,
        *,
        opener: Callable[[], Store] | None = None,
        starter: WorkerStarter | None = None,
        **settings: object,
    ) -> None:
        me = Identity(instance=InstanceId("i-1"), zone=ZoneId("us-east-1a"), address="10.0.0.4")
        self.node = node_id(me.instance, 0)
        self.service = Service(me)
        self.starter = Starter()
        self._starter = starter or self.starter
        self.ended: queue.Queue[int | Exception] = queue.Queue()
        config = AgentConfig(
            run=RUN, store_url="memory:", socket_dir=path, notice_poll_s=0.02, leave_s=0.2
        )
        self._config = replace(config, **settings)  # type: ignore[arg-type]
        self._opener = opener or (lambda: NeverClosed(store))
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        self.ended.put(
            run_agent(
                metadata=self.service,
                store=self._opener,
                starter=self._starter,
                config=self._config,
            )
        )

    def worker(self) -> Worker:
        """The next worker that it starts."""
        return self.starter.workers.get(timeout=10)

    def status(self) -> int:
        """Its exit status, waited for."""
        status = self.ended.get(timeout=10)
        self._thread.join(timeout=10)
        assert isinstance(status, int)
        return status


class NeverClosed:
    """A store as one agent sees it: closing it does not take it from the others."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def close(self) -> None:
        """The store belongs to the test."""


def state_of(store: Store) -> State:
    return Driver(store, POLICY, "test").state()


def wait_for(store: Store, condition, what: str) -> State:
    """The first state of the run that fulfils `condition`."""

    def look() -> State | None:
        state = state_of(store)
        return state if condition(state) else None

    return wait_until(look, what=what)
