"""A small cluster for tests: an embedded store and real worker processes, without any cloud.

Workers are forked from a fork server, each into a process group of its own, so that a test can
kill any of them, by pid, at any instant. Nothing of it outlives the `with` block.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bamboo.config.load import job_to_json
from bamboo.config.policy import policy_of
from bamboo.config.resolve import resolve, semantics
from bamboo.config.tree import JobConfig
from bamboo.coord.driver import Driver, create_run
from bamboo.coord.follow import Decision, Follower
from bamboo.coord.open import open_store
from bamboo.core.events import Event, PeerLost
from bamboo.core.state import NodeStatus, Phase, State, initial_state
from bamboo.data.dataset import load_data
from bamboo.errors import StoreUnavailable
from bamboo.ids import NodeId, RunId
from bamboo.models import build_model
from bamboo.runtime.wire.keys import RunKeys
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import Placement, Strategy
from bamboo.topology.sync import Sync
from bamboo.wiring import preloaded
from testbed.forker import ENTRY, Process, shared_forker
from testbed.store_server import StoreServer, start_store
from testbed.waiting import wait_until

RUN = RunId("test")
NO_RULES = Sync()
FRAME_BYTES = 1 << 32
"""The largest frame and letter, for models of any size: a larger frame ends its connection."""
LEAVE_TIMEOUT_S = 15.0
"""How long after the end of a run its processes may still be there."""


def protected(state: State) -> bool:
    """Every slot has an owner and a shadow, and nothing is under way."""
    busy = state.failovers or state.transfers or state.moves
    whole = state.assignment is not None and None not in state.assignment.shadows
    return state.phase is Phase.RUNNING and whole and not busy


class Cluster:
    """A run in `directory`; the store's state, records and processes are open to the test."""

    def __init__(
        self,
        directory: Path,
        job: JobConfig,
        server: StoreServer,
        entry: str = ENTRY,
        sync: Sync = NO_RULES,
    ) -> None:
        self.directory, self.job, self.server = directory, resolve(job), server
        self.sync = sync
        self.entry = entry
        """What a worker process runs: `package.module:function`."""
        self._also = tuple(one for one in preloaded(job) if ".models.hf." in one)
        self.processes: dict[str, Process] = {}
        self.killed: set[str] = set()
        self.fenced: set[str] = set()
        """Taken for lost although they live, and so to be fenced."""
        self.store = open_store(server.url, RUN)
        self._metrics: list[dict[str, Any]] = []
        self._metrics_end = "0"
        """The id of the last record of metrics that was read."""
        job = self.job
        self.grid = Grid(pipelines=job.cluster.pipelines, stages=job.cluster.stages)
        cuts = self._cuts()
        policy = policy_of(job, cuts, layer_bytes=(1,) * cuts[-1][-1])
        created = create_run(
            self.store,
            state=initial_state(run=RUN, grid=self.grid, redundancy=job.cluster.redundancy),
            policy=policy,
            documents={
                "job": job_to_json(job),
                "strategy": self._strategy().to_json(),
                "data": "{}",
                "limits": json.dumps({"frame_bytes": FRAME_BYTES}),
                "keys": json.dumps(RunKeys.generate().to_dict()),
            },
            at_s=time.time(),
        )
        assert created
        self.driver = Driver(self.store, policy, "test")
        (directory / "sockets").mkdir(mode=0o700)
        # Workers hang on this socket as on their agent's: they end when this process does.
        self.agent_socket = socket.socket(socket.AF_UNIX)
        self.agent_socket.bind(str(directory / "agent"))
        self.agent_socket.listen(64)

    def _cuts(self) -> list[tuple[int, ...]]:
        """A cut for every number of stages up to the job's."""
        layers, most = len(build_model(self.job).layers), self.grid.stages
        shorter = (
            tuple(round(layers * p / stages) for p in range(stages + 1))
            for stages in range(2, most)
        )
        return [*shorter, self._strategy().placement.cut]

    def _strategy(self) -> Strategy:
        job, grid = self.job, self.grid
        workload = build_model(job)
        layers = len(workload.layers)
        cut = job.cluster.cut or tuple(round(layers * p / grid.stages) for p in range(grid.stages))
        digest = load_data(job, own=workload.data).digest
        return Strategy(
            semantics=semantics(job, data_digest=digest, code={}),
            placement=Placement(
                cut=(*cut, layers),
                grid=grid,
                redundancy=job.cluster.redundancy,
                sync=self.sync,
            ),
        )

    def semantic_hash(self) -> str:
        """What checkpoints of this run's semantics carry."""
        return self._strategy().semantics.hash()

    # ------------------------------------------------------------------ nodes

    def start(
        self, count: int = 0, faults: Mapping[int, str] | None = None, zone: str = "local-a"
    ) -> None:
        """Start `count` workers (0: one a slot). `faults` plants one in some, by their number,
        which is the number of the slot that they get."""
        for index in range(count or self.grid.size):
            self.start_one((faults or {}).get(index, ""), zone)

    def start_one(self, fault: str = "", zone: str = "local-a") -> str:
        index = len(self.processes)
        node = f"i-{index:02d}.1"
        config = {
            "run": RUN,
            "node": node,
            "instance": f"i-{index:02d}",
            "zone": zone,
            "store_url": self.server.url,
            "socket_dir": str(self.directory / "sockets"),
            "run_dir": str(self.directory),
            "agent_socket": str(self.directory / "agent"),
            "scratch_dir": str(self.directory / "scratch" / node),
            "fault": fault,
        }
        log = self.directory / f"{node}.log"
        self.processes[node] = self.fork(config, log)
        return node

    def fork(self, config: Mapping[str, str], log: Path) -> Process:
        """Start the process of a worker."""
        return shared_forker(*self._also).start(config, log, self.entry)

    @property
    def pids(self) -> dict[str, int]:
        return {node: process.pid for node, process in self.processes.items()}

    def owner(self, slot: Slot) -> str:
        """The node that owns a slot now."""
        assignment = self.state().assignment
        assert assignment is not None, "training has not begun"
        return assignment.owner(slot)

    def kill(self, node: str) -> int:
        """SIGKILL a node; the stamp taken just before, in monotonic ns."""
        stamp = time.monotonic_ns()
        self.processes[node].signal(signal.SIGKILL)
        self.killed.add(node)
        return stamp

    def lost(self, node: str) -> None:
        """Report a node as the fleet does whose instance has ended."""
        self.append(PeerLost(node=NodeId(node), reporter="fleet", cause="its instance ended"))

    @contextlib.contextmanager
    def without_store(self) -> Iterator[None]:
        """The store stands still (SIGSTOP) inside the `with` block and goes on after it."""
        os.kill(self.server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.server.pid, signal.SIGCONT)

    def start_store_again(self) -> None:
        """Start a killed store on what lies in its directory."""
        self.server = start_store(self.directory)

    def lose_store(self) -> None:
        """SIGKILL the store and delete what it had written; another starts with nothing."""
        self.server.kill()
        shutil.rmtree(self.directory / "data")
        self._metrics = []
        self._metrics_end = "0"
        self.start_store_again()

    # ------------------------------------------------------------------ what the run says

    def append(self, event: Event) -> None:
        """Say something to the run, as anybody may."""
        self.driver.append(event)

    def state(self) -> State:
        return self.driver.state()

    def decisions(self) -> list[Decision]:
        """The whole log."""
        return Follower().catch_up(self.store)

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        new = self.store.records("metrics", after_id=self._metrics_end, timeout_s=0)
        self._metrics += [json.loads(text) for _, text in new]
        self._metrics_end = new[-1][0] if new else self._metrics_end
        return [r for r in self._metrics if r["kind"] == kind]

    def losses(self) -> dict[int, str]:
        """Loss by step as exact hex text; two records of a step must agree."""
        out: dict[int, str] = {}
        for record in self.metrics("step"):
            assert out.setdefault(record["step"], record["loss_hex"]) == record["loss_hex"]
        return out

    def stamps(self) -> list[dict[str, Any]]:
        """The kills that happened as listed in the job."""
        file = self.directory / "kills.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    # ------------------------------------------------------------------ waiting

    def wait(
        self,
        condition: Callable[[State], bool],
        timeout_s: float,
        what: str,
        *,
        poll_s: float = 0.01,
    ) -> State:
        """Poll the state until the condition holds; the failure shows the nodes' logs. A store that
        does not answer for a moment, as on a disk that stands still, is asked again."""
        unread: list[str] = []

        def look() -> State | None:
            try:
                found = self.state()
            except StoreUnavailable as error:
                unread[:] = [str(error)]
                return None
            unread.clear()
            return found if condition(found) else None

        try:
            return wait_until(look, what=what, timeout_s=timeout_s, poll_s=poll_s)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *unread, self.report()])) from error

    def wait_lost(self, node: str, timeout_s: float = 20.0) -> None:
        """Wait until the run counts that node as gone."""
        self.wait(
            lambda s: any(n.id == node and n.status is NodeStatus.GONE for n in s.nodes),
            timeout_s,
            f"the loss of {node}",
        )

    def wait_step(self, step: int, timeout_s: float = 60.0, *, poll_s: float = 0.01) -> None:
        """Wait until the loss of that step was reported, or the run has ended."""
        self.wait(
            lambda s: s.phase is Phase.FINISHED or step in self.losses(),
            timeout_s,
            f"step {step}",
            poll_s=poll_s,
        )

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside of this the node that was started with the fault `held` stands where it says."""
        wait_until((self.directory / "held").exists, what="the phase", timeout_s=60, poll_s=0.002)
        yield
        (self.directory / "go").touch()

    def finish(self, timeout_s: float = 120.0) -> State:
        """Wait for the end of the run and of every process."""
        state = self.wait(lambda s: s.phase is Phase.FINISHED, timeout_s, "the end")
        give_up_s = time.monotonic() + LEAVE_TIMEOUT_S
        for node, process in self.processes.items():
            if process.status(max(0.0, give_up_s - time.monotonic())) is None:
                raise AssertionError(f"{node} is still there\n{self.report()}")
        return state

    def statuses(self) -> dict[str, int | None]:
        """The exit status of every node that has ended."""
        return {node: process.status() for node, process in self.processes.items()}

    def report(self) -> str:
        """Where the run stands, and the end of every node's log."""
        state = self.state()
        said = "\n".join(f"{d.version} {d.author}: {d.reason}" for d in self.decisions())
        logs = "\n".join(
            f"--- {p.name}\n{p.read_text()[-1500:]}" for p in sorted(self.directory.glob("*.log"))
        )
        losses = self.metrics("step")[-1:]
        return f"{state.phase}: {state.sentence}\n{losses}\n{said}\n{self.statuses()}\n{logs}"

    def end_agents(self) -> None:
        """What workers take for their agent ends."""
        self.agent_socket.close()

    def close(self) -> None:
        """End every process and the connections."""
        for process in self.processes.values():
            process.close()
        self.end_agents()
        self.store.close()


@contextlib.contextmanager
def cluster(job: JobConfig, *, entry: str = ENTRY, sync: Sync = NO_RULES) -> Iterator[Cluster]:
    """A cluster for this job, with no node yet."""
    with tempfile.TemporaryDirectory(prefix="bt-") as name:
        server = start_store(Path(name))
        try:
            made = Cluster(Path(name), job, server, entry, sync)
            try:
                yield made
            finally:
                made.close()
                made.server.stop()
        finally:
            server.stop()
