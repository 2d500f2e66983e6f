"""Moves the clock, for code that is loaded afterwards.

Rule: only for a process whose times nobody measures. Code that was loaded before may keep the
functions that it has imported; the classes of `datetime` are replaced where they are looked up.
"""

import datetime
import time
from collections.abc import Callable
from typing import Any, Self

_SINCE_1970 = ("gmtime", "localtime", "ctime")
_moved_s = 0.0


def move_clock(by_s: float) -> None:
    """Let the time be `by_s` seconds later from now on."""
    global _moved_s
    if not _moved_s:
        _replace()
    _moved_s += by_s


def _replace() -> None:
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, _later(getattr(time, name), 1))
        setattr(time, f"{name}_ns", _later(getattr(time, f"{name}_ns"), 10**9))
    now = time.time
    for name in _SINCE_1970:
        setattr(time, name, _at(getattr(time, name), now))
    strftime, localtime = time.strftime, time.localtime
    setattr(time, "strftime", lambda said, at=None: strftime(said, at or localtime()))  # noqa: B010

    class Datetime(datetime.datetime):
        """The same class with the later time."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return cls.fromtimestamp(now(), tz)

        @classmethod
        def today(cls) -> Self:
            return cls.fromtimestamp(now())

        @classmethod
        def utcnow(cls) -> Self:
            return cls.fromtimestamp(now(), datetime.UTC).replace(tzinfo=None)

    class Date(datetime.date):
        """The same class with the later time."""

        @classmethod
        def today(cls) -> Self:
            return cls.fromtimestamp(now())

    setattr(datetime, "datetime", Datetime)  # noqa: B010
    setattr(datetime, "date", Date)  # noqa: B010


def _later(read: Callable[[], float], units: int) -> Callable[[], float]:
    kind = type(read())
    return lambda: read() + kind(_moved_s * units)


def _at(told: Callable[..., Any], now: Callable[[], float]) -> Callable[..., Any]:
    return lambda at=None: told(now() if at is None else at)
