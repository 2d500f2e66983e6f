"""The queue of what is to happen in a simulated world.

Rule: the key is (time, priority, sequence), so two things at one instant always happen in the same
order; there is no other clock.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from bamboo.errors import CoreMisuse


@dataclass(slots=True, eq=False)
class Entry:
    """Something that is to happen. Cancelled ones stay in the queue and do nothing."""

    action: Callable[[], None] | None


class Kernel:
    """Time of the world in seconds from its begin, and what is still to come."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        """How many have happened."""
        self._queue: list[tuple[float, int, int, Entry]] = []
        self._sequence = 0

    def at(self, time_s: float, action: Callable[[], None], *, priority: int = 0) -> Entry:
        """Let `action` happen at `time_s`; of those at one instant the least priority first, then
        whichever was asked for first. Raises CoreMisuse for a time that has passed."""
        if not time_s >= self.now_s:
            raise CoreMisuse(f"it is {self.now_s} s in the world: nothing happens at {time_s} s")
        entry = Entry(action)
        heapq.heappush(self._queue, (time_s, priority, self._sequence, entry))
        self._sequence += 1
        return entry

    def after(self, delay_s: float, action: Callable[[], None], *, priority: int = 0) -> Entry:
        """Let `action` happen in `delay_s`."""
        return self.at(self.now_s + delay_s, action, priority=priority)

    def cancel(self, entry: Entry | None) -> None:
        """What has happened already, or was cancelled, stays as it is."""
        if entry is not None:
            entry.action = None

    def run(self, *, until_s: float, over: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen up to `until_s`, where the time then stands; or until `over`."""
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
