"""A limit for the user's code while it is looked at: what does not end raises where it stands.

Rule: the limit holds for a process and, once they arm it, for its forks, whose end is earlier, so
that they can still say which layer it was. What works below Python is not interrupted.
"""

import signal
import time
from types import FrameType

_end_s: float | None = None
_limit_s = 0.0


class TookTooLong(Exception):
    """Raised in the main thread when the time is over, once."""


def limit(seconds: float) -> None:
    """From now on this process, and its forks, have so long."""
    global _end_s, _limit_s
    _end_s, _limit_s = _now_s() + seconds, seconds
    signal.signal(signal.SIGALRM, _raise)
    arm()


def arm(*, early_s: float = 0.0) -> None:
    """In a fork, which inherits the limit but no timer: raise so much earlier. Does nothing where
    there is no limit."""
    if _end_s is not None:
        signal.setitimer(signal.ITIMER_REAL, max(_end_s - early_s - _now_s(), 0.01))


def lift() -> None:
    """No limit any more."""
    global _end_s
    _end_s = None
    signal.setitimer(signal.ITIMER_REAL, 0.0)


def _now_s() -> float:
    """Of a clock that a look at other times does not move."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _raise(number: int, frame: FrameType | None) -> None:
    raise TookTooLong(f"it was not over after {_limit_s:g} s")
