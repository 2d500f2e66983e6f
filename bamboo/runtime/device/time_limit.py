"""A time limit for checks of the user's code: an error interrupts code that does not end.

Rule: the limit holds for a process and, once they arm it, for its forks. A fork's limit ends
earlier, so that it can still say which layer it was. Code below Python is not interrupted.
"""

import signal
import time
from types import FrameType

_end_s: float | None = None
_limit_s = 0.0


class TookTooLong(Exception):
    """Raised in the main thread, once, when the time is over."""


def limit(seconds: float) -> None:
    """Give this process and its forks so many seconds from now on."""
    global _end_s, _limit_s
    _end_s, _limit_s = _now_s() + seconds, seconds
    signal.signal(signal.SIGALRM, _raise)
    arm()


def arm(*, early_s: float = 0.0) -> None:
    """Start the timer in a fork, which inherits the limit but no timer, to raise `early_s` before
    the limit. Does nothing where there is no limit."""
    if _end_s is not None:
        signal.setitimer(signal.ITIMER_REAL, max(_end_s - early_s - _now_s(), 0.01))


def lift() -> None:
    """Remove the limit."""
    global _end_s
    _end_s = None
    signal.setitimer(signal.ITIMER_REAL, 0.0)


def _now_s() -> float:
    """The time by a clock that `other_times` does not move."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _raise(number: int, frame: FrameType | None) -> None:
    raise TookTooLong(f"it was not over after {_limit_s:g} s")
