"""Long runs that take turns on the machine: all but one of them are stopped (SIGSTOP).

Rules: a turn ends when every process has ended so many further steps. The order rotates each round,
and nothing else runs meanwhile, so start-up and warm-up do not count, and neighbours in time are
compared. Work between a contender's last step and its stop is already done when its next turn
begins. Processor time is read from the kernel's clocks while the processes are stopped.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks.measuring.report import in_turn
from testbed.waiting import wait_until

LOOK_S = 0.01
DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one step, on average over a turn."""

    wall_s: float
    cpu_s: float
    """Of all processes together."""


def mean_of(costs: Sequence[Cost]) -> Cost:
    """Their mean; each turn has the same number of steps."""
    return Cost(
        wall_s=fmean(cost.wall_s for cost in costs), cpu_s=fmean(cost.cpu_s for cost in costs)
    )


class Stamp(NamedTuple):
    """The end of a step in one process, in monotonic seconds of the host."""

    at_s: float
    beside_s: float = 0.0
    """Processor time of the training thread so far, without the work of operations."""
    operations: float = 0.0


class Stamps:
    """Writes one process's stamps."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"stamps-{name}"

    def step(self, beside_s: float = 0.0, operations: int = 0) -> None:
        """Stamp the end of a step now."""
        with self._path.open("a") as file:
            file.write(f"{time.monotonic():.6f} {beside_s:.6f} {operations}\n")


@dataclass(slots=True, kw_only=True)
class Contender:
    """Processes that train together and stamp their steps in `folder`."""

    name: str
    folder: Path
    pids: Sequence[int]
    send: Callable[[int], None]
    """Sends a signal to all of them; 0 only checks. Raises RuntimeError when one has ended."""
    beside: Sequence[int] = ()
    """Processes whose time counts too, and which are never stopped."""

    def run(self, steps: int) -> Cost:
        """Take a turn until every process has ended `steps` further steps; then stop."""
        wanted = self.steps() + steps
        before_s, begin_s = self.cpu_s(), time.monotonic()
        self.send(signal.SIGCONT)
        wait_until(
            lambda: self.steps() >= wanted,
            what=f"step {wanted} of {self.name}",
            timeout_s=DEADLINE_S,
            poll_s=LOOK_S,
        )
        self.send(signal.SIGSTOP)
        wall_s = time.monotonic() - begin_s
        return Cost(wall_s=wall_s / steps, cpu_s=(self.cpu_s() - before_s) / steps)

    def steps(self) -> int:
        """How many steps every process has ended. Raises RuntimeError when a process has."""
        self.send(0)
        found = list(self.folder.glob("stamps-*"))
        if len(found) < len(self.pids):
            return 0
        return min(path.read_bytes().count(b"\n") for path in found)

    def cpu_s(self) -> float:
        """Processor time of all processes since they began."""
        return sum(time.clock_gettime(_clock_of(pid)) for pid in (*self.pids, *self.beside))


def take_turns(
    contenders: Sequence[Contender], *, rounds: int, steps: int
) -> dict[str, list[Cost]]:
    """Give each a turn of `steps` in each round. Returns by name the cost of a step in each. They
    are stopped before and after."""
    found: dict[str, list[Cost]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        for contender in in_turn(contenders, number):
            found[contender.name].append(contender.run(steps))
    return found


def read_stamps(folder: Path) -> list[list[Stamp]]:
    """The ends of steps, by process."""
    return [
        [Stamp(*map(float, line.split())) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("stamps-*"))
    ]


def beside_us(stamps: Sequence[Sequence[Stamp]], skipped: int) -> float:
    """Processor microseconds of the training threads for each operation without its work, after the
    first `skipped` steps; 0 where stamps have only the time."""
    ends = [(found[skipped - 1], found[-1]) for found in stamps]
    operations = sum(last.operations - first.operations for first, last in ends)
    spent_s = sum(last.beside_s - first.beside_s for first, last in ends)
    return 1e6 * spent_s / operations if operations else 0.0


def _clock_of(pid: int) -> int:
    """The kernel's clock of a process's processor time (clock_getcpuclockid)."""
    return (~pid << 3) | 2
