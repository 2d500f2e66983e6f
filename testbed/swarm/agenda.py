"""The future calls of a played scenario.

Rule: ordered by time, then by insertion; plain tuples, because a swarm plays millions of them.
"""

import heapq
from collections.abc import Callable
from typing import Any

Call = Callable[..., None]


class Agenda:
    """The time of the world in seconds, and its future calls."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.happened = 0
        self._heap: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._asked = 0

    def after(self, delay_s: float, call: Call, *args: Any) -> None:
        """Call `call(*args)` after `delay_s`."""
        self._asked += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._asked, call, args))

    def run(self, *, until_s: float, over: Callable[[], bool]) -> None:
        """Make all calls up to `until_s`, or until `over`."""
        heap = self._heap
        while heap and heap[0][0] <= until_s and not over():
            self.now_s, _, call, args = heapq.heappop(heap)
            self.happened += 1
            call(*args)
