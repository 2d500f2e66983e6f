"""Actions that wait for the end of a step, whose time changes with the pace."""

import heapq
import itertools
import math
from collections.abc import Callable

from bamboo.sim.kernel import Entry, Kernel
from bamboo.sim.progress import Progress


class Boundaries:
    """Actions at step boundaries of one run, at one boundary in the order in which they came."""

    def __init__(self, kernel: Kernel, progress: Progress) -> None:
        self._kernel = kernel
        self._progress = progress
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._entry: Entry | None = None
        self._at_s = math.inf
        progress.changed = self._look

    def when_next(self, action: Callable[[], None]) -> None:
        """Run `action` at the end of the present step, or of the next step that begins."""
        self.when(self._progress.whole + 1, action)

    def when(self, step: int, action: Callable[[], None]) -> None:
        """Run `action` once `step` steps are done."""
        heapq.heappush(self._waiting, (step, next(self._order), action))
        self._look()

    def _look(self) -> None:
        at_s = self._progress.reaches_at_s(self._waiting[0][0]) if self._waiting else math.inf
        if self._entry is not None and at_s == self._at_s:
            return
        self._kernel.cancel(self._entry)
        self._entry = None
        self._at_s = at_s
        if not math.isinf(at_s):
            self._entry = self._kernel.at(at_s, self._happen)

    def _happen(self) -> None:
        self._entry = None
        due = []
        while self._waiting and self._waiting[0][0] <= self._progress.whole:
            due.append(heapq.heappop(self._waiting)[2])
        for action in due:
            action()
        self._look()
