"""What one process knows of its own writes to the store, from all its threads that write.

Rule: this file only records; `core.liveness.outage` draws the conclusions.
"""

import time
from collections.abc import Callable

from bamboo.core.liveness.outage import Writing


class Writes:
    """Receives the result of each write, one every `every_s`, and is read before any node is
    judged. `clock` gives seconds that never go back."""

    def __init__(self, *, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._tried_s = clock()
        """The time of the newest attempt, including one that failed."""
        # One value, so that a thread never sees half of a change.
        self._since_and_last_s: tuple[float, float] | None = None
        self._in_all_s = 0.0

    def written(self) -> None:
        """A write has succeeded."""
        now_s, known = self._clock(), self._since_and_last_s
        self._in_all_s += min(self._every_s, now_s - self._tried_s)
        self._tried_s = now_s
        self._since_and_last_s = (now_s if known is None else known[0], now_s)

    def refused(self) -> None:
        """A write was refused, has failed or was not answered."""
        self._tried_s = self._clock()
        self._since_and_last_s = None

    def now(self) -> Writing:
        """What is known now."""
        known, now_s = self._since_and_last_s, self._clock()
        if known is None:
            return Writing(in_all_s=self._in_all_s)
        return Writing(for_s=now_s - known[0], last_s=now_s - known[1], in_all_s=self._in_all_s)
