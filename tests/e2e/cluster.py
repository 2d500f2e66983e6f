"""A small cluster for tests: an embedded store and real worker processes, without any cloud.

Workers are forked from this process, each into a process group of its own, so that a test can
kill any of them, by pid, at any instant. Nothing of it outlives the `with` block.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bamboo.config.load import job_to_json
from bamboo.config.resolve import resolve, semantics
from bamboo.config.tree import JobConfig
from bamboo.coord.driver import Driver, create_run
from bamboo.coord.open import open_store
from bamboo.core.policy import Policy
from bamboo.core.state import Phase, State, initial_state
from bamboo.data import load_data
from bamboo.ids import RunId
from bamboo.models import build_model
from bamboo.runtime.numerics import local_numerics
from bamboo.runtime.transport import RunKeys
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Strategy
from tests.store_server import start_store

RUN = RunId("test")


class Cluster:
    def __init__(self, directory: Path, job: JobConfig, url: str) -> None:
        self.directory, self.job, self.url = directory, resolve(job), url
        self.pids: dict[str, int] = {}
        self.killed: set[str] = set()
        job = self.job
        data, spec = load_data(job), build_model(job)
        grid = Grid(pipelines=job.cluster.pipelines, stages=job.cluster.stages)
        layers = len(spec.factories)
        cut = job.cluster.cut or tuple(round(layers * p / grid.stages) for p in range(grid.stages))
        strategy = Strategy(
            semantics=semantics(job, data_digest=data.digest, numerics=local_numerics(job.cluster)),
            placement=Placement(cut=(*cut, layers), grid=grid, redundancy=job.cluster.redundancy),
        )
        self.store = open_store(url, RUN)
        policy = Policy(suspect_s=job.cluster.suspect_s, gone_s=job.cluster.gone_s)
        created = create_run(
            self.store,
            state=initial_state(run=RUN, grid=grid, redundancy=job.cluster.redundancy),
            policy=policy,
            documents={
                "job": job_to_json(job),
                "strategy": strategy.to_json(),
                "data": "{}",
                "keys": json.dumps(RunKeys.generate().to_dict()),
            },
            at_s=time.time(),
        )
        assert created
        self.driver = Driver(self.store, policy, "test")
        (directory / "sockets").mkdir(mode=0o700)

    def start(self, count: int, patch: Callable[[int], None] | None = None) -> None:
        for _ in range(count):
            self.start_one(patch)

    def start_one(self, patch: Callable[[int], None] | None = None) -> str:
        index = len(self.pids)
        node = f"i-{index:02d}.1"
        config = {
            "run": RUN,
            "node": node,
            "instance": f"i-{index:02d}",
            "zone": "local-a",
            "store_url": self.url,
            "socket_dir": str(self.directory / "sockets"),
            "run_dir": str(self.directory),
            "agent_socket": "",
        }
        pid = os.fork()
        if pid == 0:
            status = 99
            try:
                os.setpgid(0, 0)
                log = os.open(self.directory / f"{node}.log", os.O_WRONLY | os.O_CREAT, 0o600)
                os.dup2(log, 1)
                os.dup2(log, 2)
                from bamboo.runtime import worker

                if patch is not None:
                    patch(index)
                status = worker.main(config)
            finally:
                sys.stderr.flush()
                os._exit(status)
        self.pids[node] = pid
        return node

    def kill(self, node: str) -> int:
        """SIGKILL a node; the stamp taken just before, in monotonic ns."""
        stamp = time.monotonic_ns()
        os.kill(self.pids[node], signal.SIGKILL)
        self.killed.add(node)
        return stamp

    def state(self) -> State:
        return self.driver.state()

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        records = [
            json.loads(r) for _, r in self.store.records("metrics", after_id="0", timeout_s=0)
        ]
        return [r for r in records if r["kind"] == kind]

    def losses(self) -> dict[int, str]:
        """Loss by step as exact hex text; two records of a step must agree."""
        out: dict[int, str] = {}
        for record in self.metrics("step"):
            assert out.setdefault(record["step"], record["loss_hex"]) == record["loss_hex"]
        return out

    def wait(self, condition: Callable[[State], bool], timeout_s: float, what: str) -> State:
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.state()
            if condition(state):
                return state
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come within {timeout_s} s: {self.report()}")
            time.sleep(0.01)

    def wait_step(self, step: int, timeout_s: float = 60.0) -> None:
        """Wait until the loss of that step was reported."""
        self.wait(
            lambda s: s.phase is Phase.FINISHED or len(self.metrics("step")) > step,
            timeout_s,
            f"step {step}",
        )

    def finish(self, timeout_s: float = 90.0) -> State:
        """Wait for the end of the run and of every process."""
        state = self.wait(lambda s: s.phase is Phase.FINISHED, timeout_s, "the end")
        deadline = time.monotonic() + 15
        for pid in self.pids.values():
            while _alive(pid):
                if time.monotonic() > deadline:
                    raise AssertionError(f"process {pid} is still there: {self.report()}")
                time.sleep(0.01)
        return state

    def report(self) -> str:
        logs = "\n".join(
            f"--- {p.name}\n{p.read_text()[-1500:]}" for p in sorted(self.directory.glob("*.log"))
        )
        return f"{self.state().phase} {self.state().sentence}; {self.metrics('step')[-1:]}\n{logs}"


def _alive(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


@contextlib.contextmanager
def cluster(job: JobConfig) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="bt-") as name:
        directory = Path(name)
        embedded = start_store(directory)
        made = Cluster(directory, job, embedded.url)
        try:
            yield made
        finally:
            for pid in made.pids.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _alive(pid)
            made.store.close()
            embedded.stop()
