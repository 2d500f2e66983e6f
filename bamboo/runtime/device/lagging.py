"""A device for tests: it computes on the CPU, and is done with operations and copies only later.

It stands for a GPU where there is none. An operation computes when it is issued, but counts as done
only after a delay; a copy to the host holds NaN until it is done, and reads its source only then.
So a caller that reads a copy too early, or changes what a copy has yet to read, gets other bits.
"""

import math
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from bamboo.runtime.device.cuda import AHEAD, QUEUED, REDUNDANT
from bamboo.runtime.device.staging import Staged

T = TypeVar("T")
MOST_DELAY_S = 2e-3
"""The longest time for which an operation or a copy keeps its queue."""


class _Copy:
    """A copy that is made when it is found to be due."""

    def __init__(self, sources: Sequence[Tensor], due_s: float, clock: Callable[[], float]) -> None:
        self.tensors = tuple(_unwritten(source) for source in sources)
        self._sources = tuple(sources)
        self._due_s = due_s
        self._clock = clock

    def ready(self) -> bool:
        """Make the copy, if it is due; whether it is made."""
        if self._sources and self._clock() >= self._due_s:
            self.finish()
        return not self._sources

    def finish(self) -> None:
        """Make the copy now."""
        for copy, source in zip(self.tensors, self._sources, strict=False):
            copy.copy_(source)
        self._sources = ()


@dataclass(kw_only=True)
class Lagging:
    """See the top of the file; `seed` draws the delays, by a clock that a test may turn itself."""

    seed: int = 0
    clock: Callable[[], float] = time.perf_counter
    most_delay_s: float = MOST_DELAY_S
    overruns: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)
    meanwhile: Callable[[float], bool] | None = None

    def __post_init__(self) -> None:
        self.place = torch.device("cpu")
        self._draw = random.Random(self.seed)
        self._ends_s: deque[float] = deque()
        """When each operation that was issued counts as done."""
        self._copies: list[_Copy] = []
        self._dues_s: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._wake: Callable[[], None] = lambda: None

    def woken_by(self, wake: Callable[[], None]) -> None:
        """Start the thread that waits for what is due."""
        self._wake = wake
        if self.clock is time.perf_counter:
            threading.Thread(target=self._watch, name="device", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(max(0.0, self._dues_s.get() - time.perf_counter()))
            self._wake()

    def _last_due_s(self) -> float:
        """When what is issued now is done: after all operations before it."""
        before_s = self._ends_s[-1] if self._ends_s else 0.0
        due_s = max(before_s, self.clock()) + self._draw.uniform(0.0, self.most_delay_s)
        self._dues_s.put(due_s)
        return due_s

    def accepts(self, kind: str) -> bool:
        """As a GPU's queue."""
        while self._ends_s and self._ends_s[0] <= self.clock():
            self._ends_s.popleft()
        if kind in QUEUED and kind not in REDUNDANT:
            return len(self._ends_s) < AHEAD
        return not self._ends_s

    def run(self, kind: str, stage: int, work: Callable[[], T]) -> T:
        """Compute now, and be done later."""
        del stage
        if kind not in QUEUED:
            self.settle()
        begin_s = time.perf_counter()
        out = work()
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + time.perf_counter() - begin_s
        if kind in QUEUED:
            self._ends_s.append(self._last_due_s())
        return out

    def settle(self) -> None:
        """Be done with everything now."""
        self._ends_s.clear()
        for copy in self._copies:
            copy.finish()
        self._copies.clear()

    def fetch(self, tensors: Sequence[Tensor]) -> Staged:
        """A copy that is made later, behind the operations that were issued."""
        copy = _Copy(tensors, self._last_due_s(), self.clock)
        self._copies = [other for other in self._copies if not other.ready()]
        self._copies.append(copy)
        return copy

    def put(self, tensors: Sequence[Tensor], after: Staged | None = None) -> tuple[Tensor, ...]:
        """New tensors with the same contents, once the copy that they come from is made."""
        if isinstance(after, _Copy):
            after.finish()
        return tuple(tensor.clone() for tensor in tensors)

    def memory(self) -> dict[str, int]:
        """Nothing: its tensors lie on the host."""
        return {}

    def lay_out(self, cut: Sequence[int]) -> None:
        """Does nothing: no duration here depends on the cut."""


def _unwritten(like: Tensor) -> Tensor:
    if like.is_floating_point():
        return torch.full_like(like, math.nan)
    return torch.full_like(like, -1)
