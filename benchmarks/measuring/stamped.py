"""Our worker processes, which stamp the ends of their steps in a file each.

Rule: a stamp is a line that the training process writes, so that the run is not queried while it is
timed. Everything that the training thread does, except the work that an operation gives to its
device, is the cost of our runtime: picking, messages, copies, records.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo.config.tree import JobConfig
from bamboo.runtime.device.devices import Cpu, Device, VirtualDevice
from bamboo.runtime.node.trainer import Trainer
from benchmarks.measuring.turns import Contender, Stamp, Stamps, read_stamps
from benchmarks.peers.processes import die_with_parent
from testbed import entry
from testbed.cluster import Cluster, cluster

ENTRY = "benchmarks.measuring.stamped:main"
DEADLINE_S = 600.0


class Work:
    """How often a device was given work, and the processor time of that work in seconds."""

    def __init__(self) -> None:
        self.operations, self.cpu_s = 0, 0.0

    def timed(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The `run` of a device, with its work timed."""

        def running(device: Device, kind: str, stage: int, work: Callable[[], Any]) -> Any:
            def working() -> Any:
                begin_s = time.thread_time()
                out = work()
                self.cpu_s += time.thread_time() - begin_s
                self.operations += 1
                return out

            return run(device, kind, stage, working)

        return running


def main(config: Mapping[str, str]) -> int:
    """A worker that stamps the steps of what it owns; its exit status."""
    die_with_parent()  # it is stopped most of the time and would not notice that its parent is gone
    stamps, work = Stamps(Path(config["run_dir"]), config["node"]), Work()
    stepped = Trainer.stepped

    def stamping(self: Trainer, run: Any, *rest: Any) -> None:
        stepped(self, run, *rest)
        if run.owner:
            stamps.step(time.thread_time() - work.cpu_s, work.operations)

    Trainer.stepped = stamping  # type: ignore[method-assign]
    for device in (Cpu, VirtualDevice):
        device.run = work.timed(device.run)  # type: ignore[attr-defined]
    return entry.main(config)


@contextlib.contextmanager
def ours(name: str, job: JobConfig) -> Iterator[Contender]:
    """Our workers, one for each slot, training the job, which must not end before the `with` block
    does. The store counts as one of the processes, but is never stopped."""
    with cluster(job, entry=ENTRY) as running:
        running.start()

        def send(number: int) -> None:
            ended = [n for n, p in running.processes.items() if not p.signal(number)]
            if ended:
                raise RuntimeError(f"{', '.join(ended)} ended\n{running.report()}")

        try:
            yield Contender(
                name=name,
                folder=running.directory,
                pids=tuple(running.pids.values()),
                beside=(running.server.pid,),
                send=send,
            )
        finally:
            for process in running.processes.values():
                process.signal(signal.SIGCONT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A whole run: the ends of its steps by process, and what the nodes recorded."""

    stamps: list[list[Stamp]]
    memory: list[dict[str, Any]]


def whole_run(job: JobConfig) -> Ran:
    """Train the job to its end. Raises RuntimeError when it ends otherwise than done."""
    with cluster(job, entry=ENTRY) as running:
        running.start()
        _wait(running)
        state = running.finish()
        if state.outcome != "done":
            raise RuntimeError(f"the run ended {state.outcome}: {state.sentence}")
        return Ran(stamps=read_stamps(running.directory), memory=running.metrics("memory"))


def _wait(running: Cluster) -> None:
    """Wait until every process has ended, without queries to the run, which would cost time."""
    for node, process in running.processes.items():
        if process.status(DEADLINE_S) is None:
            raise RuntimeError(f"{node} is still there\n{running.report()}")
