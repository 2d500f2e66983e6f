"""Whether the log was there all the time that a step may take.

Rule: a loss waits for its decision while the store is away, and waiting for that is no standstill.
"""

import math
import time

LOG_AWAY_S = 1.0
"""A log that has not answered for so long is away."""


class LogWatch:
    """Told by the thread that follows the log, asked by the trainer."""

    def __init__(self, step_timeout_s: float) -> None:
        self._step_timeout_s = step_timeout_s
        self._answered_s = self._back_s = -math.inf

    def answered(self) -> None:
        """Note that the store answers; called often."""
        now_s = time.monotonic()
        if now_s - self._answered_s > LOG_AWAY_S:
            self._back_s = now_s
        self._answered_s = now_s

    def away(self) -> bool:
        """Whether the store does not answer at present."""
        return time.monotonic() - self._answered_s > LOG_AWAY_S

    def was_there(self) -> bool:
        """Whether every decision of the time that a step may take has reached this node."""
        return not self.away() and time.monotonic() - self._back_s > self._step_timeout_s
