"""Whether the log was there all the time that a step may take.

Rule: a loss waits for its decision while the store is away, and waiting for that is no standstill.
A log that is read and takes nothing is away, too.
"""

import math
import time

from bamboo.core.outage import AWAY_S


class LogWatch:
    """Told by the thread that follows the log and by the one that hears the agent, asked by the
    trainer."""

    def __init__(self, step_timeout_s: float) -> None:
        self._step_timeout_s = step_timeout_s
        self._answered_s = self._back_s = -math.inf
        self._refuses = False

    def answered(self) -> None:
        """Note that the store answers; called often."""
        now_s = time.monotonic()
        if now_s - self._answered_s > AWAY_S:
            self._back_s = now_s
        self._answered_s = now_s

    def taken(self, taken: bool) -> None:
        """Note whether the store takes what this node writes; called often."""
        if taken and self._refuses:
            self._back_s = time.monotonic()
        self._refuses = not taken

    def away(self) -> bool:
        """Whether the store does not answer at present, or refuses."""
        return self._refuses or time.monotonic() - self._answered_s > AWAY_S

    def was_there(self) -> bool:
        """Whether every decision of the time that a step may take has reached this node."""
        return not self.away() and time.monotonic() - self._back_s > self._step_timeout_s
