"""Tells whether the log was available for the whole time that a step may take.

Rule: a loss waits for its decision while the store is away, and waiting for that is not a stall. A
log that can be read but not written counts as away, too. A log that comes and goes does not excuse
a stall for ever: the times in which it was available add up.
"""

import math
import time

from bamboo.core.liveness.outage import AWAY_S, PIECES


class LogWatch:
    """Updated by the thread that follows the log and by the one that reads the agent's answers;
    asked by the trainer."""

    def __init__(self, step_timeout_s: float) -> None:
        self._step_timeout_s = step_timeout_s
        self._answered_s = self._back_s = -math.inf
        self._refuses = False
        self._there_s = 0.0
        """How long the log was available in all."""
        self._excused: tuple[str, float] | None = None
        """Where the node stood when an outage first excused it, and `_there_s` at that time."""

    def answered(self) -> None:
        """Note that the store answers; called often."""
        now_s = time.monotonic()
        if now_s - self._answered_s > AWAY_S:
            self._back_s = now_s
        elif not self._refuses:
            self._there_s += now_s - self._answered_s
        self._answered_s = now_s

    def taken(self, taken: bool) -> None:
        """Note whether the store takes what this node writes; called often."""
        if taken and self._refuses:
            self._back_s = time.monotonic()
        self._refuses = not taken

    def away(self) -> bool:
        """Whether the store does not answer at present, or refuses what is written."""
        return self._refuses or time.monotonic() - self._answered_s > AWAY_S

    def excuses(self, where: str) -> bool:
        """Whether a node that has stood at `where` for the time that a step may take may still wait
        for a decision, because not every decision of that time has reached it. At one place this
        holds until the log was available for PIECES times as long in all."""
        if not self.away() and time.monotonic() - self._back_s > self._step_timeout_s:
            self._excused = None
            return False
        if self._excused is None or self._excused[0] != where:
            self._excused = (where, self._there_s)
        return self._there_s - self._excused[1] < PIECES * self._step_timeout_s
