"""How long a cloud that asks for fewer calls is left alone: longer each time, and never in step.

Rule: nothing waits in here. Whoever has a loop asks `until_s` in each turn; chance is an argument.
"""

import random

FIRST_S = 1.0
MOST_S = 60.0


class Backoff:
    """Doubles from FIRST_S to MOST_S, each time between half of it and all of it: launchers that
    were refused together do not come back together."""

    def __init__(self, *, chance: random.Random) -> None:
        self._chance = chance
        self._times = 0
        self.until_s = 0.0
        """Unix time before which nothing is to be asked."""

    def refused(self, *, now_s: float) -> float:
        """The cloud asked for fewer calls; so many seconds are to pass."""
        whole_s = min(MOST_S, FIRST_S * 2.0 ** min(self._times, 16))
        self._times += 1
        wait_s = whole_s * (0.5 + 0.5 * self._chance.random())
        self.until_s = now_s + wait_s
        return wait_s

    def answered(self) -> None:
        """The cloud takes calls again."""
        self._times = 0
        self.until_s = 0.0
