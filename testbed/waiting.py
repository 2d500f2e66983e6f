"""Waiting for a condition, never for a while."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T | None], *, what: str, timeout_s: float = 10.0, poll_s: float = 0.01
) -> T:
    """Call `condition` until it returns something true, and return that.

    Fails with `what` and the last value when `timeout_s` passes first. The condition is always
    called at least once, and once more after the deadline, so a slow machine is not a failure.
    Looking takes at most a fifth of a processor, which what is waited for needs too, and at most a
    third of the time: what a fork of the warm process works is not seen here.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        before_s, began_s = _worked_s(), time.monotonic()
        late = time.monotonic() >= deadline_s
        value = condition()
        if value:
            return value
        if late:
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last value: {value!r})")
        looked_s = time.monotonic() - began_s
        time.sleep(max(poll_s, 4 * (_worked_s() - before_s), 2 * looked_s))


def _worked_s() -> float:
    """Seconds of a processor, of this process and of children that it has seen the end of."""
    return sum(os.times()[:4])
