"""torchft in the plays of kills: replicas of the whole model, and a lighthouse that decides
membership.

Rule: as soon as a replica is killed, a fork server that has imported torch and torchft starts
another one, as for a killed node of ours.
"""

import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.failover.failover_figures import Commit, Kill, Play
from benchmarks.peers.processes import BIN, Forks, free_port, running, wait_for

MODULE = "benchmarks.peers.torchft_replica"
FOREVER = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the lighthouse and the replicas."""

    heartbeat_ms: int
    join_ms: int
    tick_ms: int
    collective_s: float
    """A sum over all replicas is given up after this. A replica without a connection to a dead one
    in the ring of the sum notices the loss only so."""
    fixed: bool = True
    """Whether a spare takes a lost replica's share, so that the batch stays the same. Otherwise
    there is no spare, and the batch shrinks with the number of replicas."""

    def options(self) -> list[str]:
        """Options of the lighthouse's command line."""
        return [
            *("--heartbeat_timeout_ms", str(self.heartbeat_ms)),
            *("--join_timeout_ms", str(self.join_ms)),
            *("--quorum_tick_ms", str(self.tick_ms)),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What each replica trains."""

    job: str
    active: int
    """Replicas that share the batch; 0: as many as there are."""
    each: int
    """Microbatches of a replica."""
    microbatch: int
    """Samples of a microbatch."""
    step_s: float
    slow_steps: int = FOREVER
    """Steps that take `step_s`; later ones are not slowed down."""
    steps: int = FOREVER


class Group:
    """Replicas by name, any of which may be killed."""

    def __init__(
        self, directory: Path, work: Work, settings: Settings, lighthouse: str, forks: Forks
    ) -> None:
        self._directory, self._work, self._lighthouse = directory, work, lighthouse
        self._settings, self._forks = settings, forks
        self._pids: dict[str, int] = {}
        self._started = 0

    def start(self) -> str:
        """Start one more replica."""
        name = f"r{self._started:03d}"
        self._started += 1
        work = self._work
        config = {
            "id": name,
            "job": work.job,
            "active": work.active,
            "each": work.each,
            "step_s": work.step_s,
            "slow_steps": work.slow_steps,
            "steps": work.steps,
            "collective_s": self._settings.collective_s,
            "lighthouse": self._lighthouse,
            "record": str(self._directory / f"{name}.jsonl"),
        }
        self._pids[name] = self._forks.start(name, config)
        return name

    def kill(self, name: str) -> float:
        """SIGKILL a replica; the time by the monotonic clock."""
        at_s = time.monotonic()
        os.kill(self._pids.pop(name), signal.SIGKILL)
        return at_s

    @property
    def names(self) -> list[str]:
        """Names of the live replicas, in the order in which they were started."""
        return list(self._pids)

    def training(self) -> list[str]:
        """The replicas that share the batch: with spares, the first in torchft's order, which is
        the order of the names."""
        return self.names[: self._work.active or None]

    def records(self) -> list[dict[str, Any]]:
        """What all replicas wrote, in order of time."""
        found = [
            json.loads(line) | {"replica": file.stem}
            for file in self._directory.glob("r*.jsonl")
            for line in file.read_text().splitlines()
        ]
        return sorted(found, key=lambda one: one["at_s"])

    def wait_step(self, step: int, timeout_s: float = 180.0) -> None:
        """Wait until a replica has committed that step."""
        wait_for(
            lambda: any(r["committed"] and r["step"] >= step for r in self.records()),
            lambda: f"torchft did not come to step {step}: {self.said()}",
            timeout_s,
        )

    def said(self) -> str:
        """The end of the replicas' logs."""
        logs = sorted(self._directory.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-600:]}" for log in logs)


@contextlib.contextmanager
def group(work: Work, settings: Settings) -> Iterator[Group]:
    """A lighthouse and a fork server, with no replica yet."""
    with tempfile.TemporaryDirectory(prefix="bp-") as name:
        directory, port = Path(name), free_port()
        command = [str(BIN / "torchft_lighthouse"), "--bind", f"127.0.0.1:{port}"]
        command += ["--min_replicas", str(max(1, work.active)), *settings.options()]
        with running(command, directory / "lighthouse.log"):
            forks = Forks(MODULE, directory)
            try:
                yield Group(directory, work, settings, f"http://127.0.0.1:{port}", forks)
            finally:
                forks.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """One play of another system."""

    play: Play
    digests: dict[int, str]
    """Digest of the weights after each step, the newest where there are several."""
    unlike: int
    """Number of steps after which two processes had different weights."""


def killed(
    work: Work, settings: Settings, kills: Sequence[Kill], for_s: float, *, count: int, warm: int
) -> Theirs:
    """Play the kills with `count` replicas for so many seconds after `warm` steps."""
    with group(work, settings) as replicas:
        for _ in range(count):
            replicas.start()
        replicas.wait_step(warm)
        begin_s = time.monotonic()
        stamps = []
        for kill in kills:
            time.sleep(max(0.0, begin_s + kill.at_s - time.monotonic()))
            stamps.append(replicas.kill(kill.victim(replicas.training())))
            replicas.start()
        time.sleep(max(0.0, begin_s + for_s - time.monotonic()))
        return theirs(replicas.records(), work, begin_s, time.monotonic(), stamps)


def calm(work: Work, settings: Settings, *, count: int) -> Theirs:
    """The same without a kill, for `work.steps` steps."""
    with group(work, settings) as replicas:
        for _ in range(count):
            replicas.start()
        begin_s = time.monotonic()
        replicas.wait_step(work.steps - 1, timeout_s=60.0 + 2 * work.steps * work.step_s)
        return theirs(replicas.records(), work, begin_s, time.monotonic(), [])


def theirs(
    records: Sequence[dict[str, Any]],
    work: Work,
    begin_s: float,
    end_s: float,
    stamps: Sequence[float],
) -> Theirs:
    """One play, from the records of all replicas."""
    first: dict[int, dict[str, Any]] = {}
    digests: dict[int, set[str]] = {}
    given_up: dict[str, int] = {}
    for record in records:
        if record["committed"]:
            first.setdefault(record["step"], record)
            digests.setdefault(record["step"], set()).add(record["digest"])
        elif record["at_s"] > begin_s:
            given_up[record["replica"]] = given_up.get(record["replica"], 0) + 1
    commits = tuple(
        Commit(step=step, at_s=record["at_s"], samples=record["microbatches"] * work.microbatch)
        for step, record in first.items()
    )
    return Theirs(
        play=Play(
            begin_s=begin_s,
            end_s=end_s,
            kills_s=tuple(stamps),
            commits=commits,
            discarded=max(given_up.values(), default=0),
        ),
        digests={step: min(found) for step, found in digests.items()},
        unlike=sum(len(found) > 1 for found in digests.values()),
    )
