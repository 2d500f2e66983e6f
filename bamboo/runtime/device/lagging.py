"""A device for tests: it computes on the CPU, and is done with operations and copies only later.

It stands for a GPU where there is none. An operation computes when it is issued, but counts as done
only after a delay; a copy to the host holds NaN until it is done, and reads its source only then.
So a caller that reads a copy too early, or changes what a copy has yet to read, gets other bits.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from bamboo.runtime.device.cuda import QUEUED
from bamboo.runtime.device.staging import Staged
from bamboo.runtime.device.virtual import Clocked

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
class Lagging(Clocked):
    """See the top of the file; `seed` draws the delays."""

    seed: int = 0
    most_delay_s: float = MOST_DELAY_S

    def __post_init__(self) -> None:
        super().__post_init__()
        self._draw = random.Random(self.seed)
        self._copies: list[_Copy] = []

    def _due_s(self, begin_s: float) -> float:
        """When what is issued now and begins then is done."""
        due_s = begin_s + self._draw.uniform(0.0, self.most_delay_s)
        self._dues_s.put(due_s)
        return due_s

    def run(self, kind: str, stage: int, work: Callable[[], T], layers: range | None = None) -> T:
        """Compute now, and be done later."""
        del stage, layers
        if kind not in QUEUED:
            self.settle()
        begin_s = time.perf_counter()
        out = work()
        self._add(kind, time.perf_counter() - begin_s)
        if kind in QUEUED:
            self._ends_s.append(self._due_s(self._free_s(self.clock())))
        return out

    def settle(self) -> None:
        """Be done with everything now."""
        self._ends_s.clear()
        for copy in self._copies:
            copy.finish()
        self._copies.clear()

    def fetch(self, tensors: Sequence[Tensor], *, at_rest: bool = False) -> Staged:
        """A copy that is made later: behind the operations that were issued, unless `at_rest`."""
        now_s = self.clock()
        due_s = self._due_s(now_s if at_rest else self._free_s(now_s))
        copy = _Copy(tensors, due_s, self.clock)
        self._copies = [other for other in self._copies if not other.ready()]
        self._copies.append(copy)
        return copy

    def put(self, tensors: Sequence[Tensor], after: Staged | None = None) -> tuple[Tensor, ...]:
        """New tensors with the same contents, once the copy that they come from is made."""
        if isinstance(after, _Copy):
            after.finish()
        return tuple(tensor.clone() for tensor in tensors)

    def lay_out(self, cut: Sequence[int]) -> None:
        """Does nothing: no duration here depends on the cut."""


def _unwritten(like: Tensor) -> Tensor:
    if like.is_floating_point():
        return torch.full_like(like, math.nan)
    return ~like
