"""Moves the clock, for code that is loaded afterwards.

Rule: only for a process whose times nobody measures. Code that was loaded before may keep the
functions that it has imported.
"""

import ctypes
import datetime
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

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

    def of_now(cls: Any, tz: datetime.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(now(), tz)

    def of_today(cls: Any) -> Any:
        return cls.fromtimestamp(now())

    def of_utcnow(cls: Any) -> Any:
        return cls.fromtimestamp(now(), datetime.UTC).replace(tzinfo=None)

    moved = {"now": of_now, "today": of_today, "utcnow": of_utcnow}
    _put(datetime.datetime, moved)
    _put(datetime.date, {"today": of_today})


def _put(cls: type, methods: Mapping[str, Callable[..., Any]]) -> None:
    """Give a built-in class other class methods. A subclass in its place would not do: extension
    modules that are loaded later, such as those of pandas, extend the class by its size."""
    (members,) = gc.get_referents(cls.__dict__)
    members.update({name: classmethod(method) for name, method in methods.items()})
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))


def _later(read: Callable[[], float], units: int) -> Callable[[], float]:
    kind = type(read())
    return lambda: read() + kind(_moved_s * units)


def _at(told: Callable[..., Any], now: Callable[[], float]) -> Callable[..., Any]:
    return lambda at=None: told(now() if at is None else at)
