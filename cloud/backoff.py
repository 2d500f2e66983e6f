"""How long a throttling cloud is left alone: longer each time, and at random so that launchers do
not retry together.

Rule: nothing waits in here. The caller's loop reads `until_s` in each turn; chance is an argument.
"""

import random

FIRST_S = 1.0
MOST_S = 60.0


class Backoff:
    """Doubles from FIRST_S to MOST_S. Each pause is between half of that and all of it, so that
    launchers which were refused together do not come back together."""

    def __init__(self, *, chance: random.Random) -> None:
        self._chance = chance
        self._times = 0
        self.until_s = 0.0
        """Unix time before which the cloud is not called."""

    def refused(self, *, now_s: float) -> float:
        """The cloud throttled a call. Returns how many seconds to pause."""
        whole_s = min(MOST_S, FIRST_S * 2.0 ** min(self._times, 16))
        self._times += 1
        wait_s = whole_s * (0.5 + 0.5 * self._chance.random())
        self.until_s = now_s + wait_s
        return wait_s

    def answered(self) -> None:
        """The cloud accepts calls again."""
        self._times = 0
        self.until_s = 0.0
