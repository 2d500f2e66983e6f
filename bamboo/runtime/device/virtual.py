"""The virtual device: operations take given times, and are issued ahead of it as of a GPU.

    host      F0 F1      B0 F2          arithmetic, done when an operation is issued
    device    [ F0 ][ F1 ]    [ B0 ][ F2 ]

It is the honest way to show a schedule on a machine with fewer cores than nodes: the arithmetic is
real, the duration of an operation is given, and it stands for a GPU whose host runs ahead.

Rules. (1) An operation begins when the one before it is done, and not before it is issued; it is
done when its figure has passed. What the host computes meanwhile is told to nobody before. (2) An
operation whose arithmetic ends later than that is done then, and is counted as an overrun. (3) The
queue is that of a GPU (`cuda`).
"""

import ctypes
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from bamboo.runtime.device.cuda import AHEAD, QUEUED, REDUNDANT
from bamboo.runtime.device.staging import OnHost, Staged

T = TypeVar("T")
_PR_SET_TIMERSLACK = 29
"""From prctl(2) of Linux."""


@dataclass(frozen=True, slots=True)
class _Later:
    """Tensors of the host that count as copied from a time on."""

    tensors: tuple[Tensor, ...]
    due_s: float
    clock: Callable[[], float]

    def ready(self) -> bool:
        """Whether that time has come."""
        return self.clock() >= self.due_s


@dataclass(kw_only=True)
class Clocked:
    """A queue of operations that compute on the host when they are issued, and are done when their
    time has come by `clock`, which a test may turn itself."""

    clock: Callable[[], float] = time.perf_counter
    overruns: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = torch.device("cpu")
        self._ends_s: deque[float] = deque()
        """When each operation that was issued is done."""
        self._dues_s: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._wake: Callable[[], None] = lambda: None

    def woken_by(self, wake: Callable[[], None]) -> None:
        """Start the thread that waits for what is due."""
        self._wake = wake
        if self.clock is time.perf_counter:
            threading.Thread(target=self._watch, name="device", daemon=True).start()

    def _watch(self) -> None:
        _sleep_exactly()
        while True:
            time.sleep(max(0.0, self._dues_s.get() - time.perf_counter()))
            self._wake()

    def accepts(self, kind: str) -> bool:
        """As a GPU's queue."""
        now_s = self.clock()
        while self._ends_s and self._ends_s[0] <= now_s:
            self._ends_s.popleft()
        if kind in QUEUED and kind not in REDUNDANT:
            return len(self._ends_s) < AHEAD
        return not self._ends_s

    def _free_s(self, from_s: float) -> float:
        """When all that was issued is done; `from_s` if that is later."""
        return max(from_s, self._ends_s[-1]) if self._ends_s else from_s

    def _add(self, kind: str, seconds: float) -> None:
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + seconds

    def memory(self) -> dict[str, int]:
        """Nothing: its tensors lie on the host."""
        return {}


@dataclass(kw_only=True)
class VirtualDevice(Clocked):
    """Makes each operation last as long as its figure: `layers_s` has seconds by kind and layer."""

    layers_s: Mapping[str, Sequence[float]]
    figures_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def run(self, kind: str, stage: int, work: Callable[[], T], layers: range | None = None) -> T:
        """Issue an operation, or these layers' part of it; one that changes state takes as long as
        its arithmetic."""
        if kind not in QUEUED:
            self.settle()
        issued_s = self.clock()
        out = work()
        computed_s = self.clock()
        if kind not in QUEUED:
            self._add(kind, computed_s - issued_s)
            return out
        begin_s = self._free_s(issued_s)
        end_s = begin_s + self._figure_s(kind, stage, layers)
        if computed_s > end_s:
            self.overruns += 1
            end_s = computed_s
        self._ends_s.append(end_s)
        self._dues_s.put(end_s)
        self._add(kind, end_s - begin_s)
        return out

    def _figure_s(self, kind: str, stage: int, layers: range | None) -> float:
        if layers is None:
            return self.figures_s[(kind, stage)]
        return sum(self.layers_s[kind][layers.start : layers.stop])

    def settle(self) -> None:
        """Wait until the last operation is done."""
        left_s = self._free_s(0.0) - self.clock()
        if left_s > 0:
            time.sleep(left_s)
        self._ends_s.clear()

    def fetch(self, tensors: Sequence[Tensor], *, at_rest: bool = False) -> Staged:
        """The tensors themselves, once the operations that were issued are done."""
        now_s = self.clock()
        due_s = self._free_s(now_s)
        if at_rest or due_s <= now_s:
            return OnHost(tuple(tensors))
        return _Later(tuple(tensors), due_s, self.clock)

    def put(self, tensors: Sequence[Tensor], after: Staged | None = None) -> tuple[Tensor, ...]:
        """The tensors themselves: an operation on them begins after the one that made them."""
        del after
        return tuple(tensors)

    def lay_out(self, cut: Sequence[int]) -> None:
        self.figures_s = {
            (kind, stage): sum(figures[first:stop])
            for kind, figures in self.layers_s.items()
            for stage, (first, stop) in enumerate(pairwise(cut))
        }


def _sleep_exactly() -> None:
    """Let this thread's sleeps end on time: the kernel may otherwise add 50 us to each to save
    power. Does nothing on systems other than Linux."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1))
