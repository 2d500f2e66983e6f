"""The event queue of a simulated world.

Rule: the key is (time, priority, sequence), so two entries at one time always run in the same
order; there is no other clock.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from bamboo.errors import CoreMisuse


@dataclass(slots=True, eq=False)
class Entry:
    """A future event. A cancelled one stays in the queue and does nothing."""

    action: Callable[[], None] | None


class Kernel:
    """The time of the world in seconds since its beginning, and its future events."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        """Number of events that have run."""
        self._queue: list[tuple[float, int, int, Entry]] = []
        self._sequence = 0

    def at(self, time_s: float, action: Callable[[], None], *, priority: int = 0) -> Entry:
        """Run `action` at `time_s`. At one time the lowest priority runs first, then the one that
        was queued first. Raises CoreMisuse for a time in the past."""
        if not time_s >= self.now_s:
            raise CoreMisuse(f"it is {self.now_s} s in the world: nothing happens at {time_s} s")
        entry = Entry(action)
        heapq.heappush(self._queue, (time_s, priority, self._sequence, entry))
        self._sequence += 1
        return entry

    def after(self, delay_s: float, action: Callable[[], None], *, priority: int = 0) -> Entry:
        """Run `action` after `delay_s`."""
        return self.at(self.now_s + delay_s, action, priority=priority)

    def cancel(self, entry: Entry | None) -> None:
        """Cancel an entry; no effect if it has run or was cancelled."""
        if entry is not None:
            entry.action = None

    def run(self, *, until_s: float, over: Callable[[], bool] = lambda: False) -> None:
        """Run all events up to `until_s`, which is then the present time, or until `over`."""
        while self._queue and self._queue[0][0] <= until_s and not over():
            time_s, _, _, entry = heapq.heappop(self._queue)
            action, entry.action = entry.action, None
            if action is None:
                continue
            self.now_s = time_s
            self.events += 1
            action()
        if not over():
            self.now_s = max(self.now_s, until_s)
