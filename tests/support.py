"""What tests of every room share: waiting for a condition, never for a while."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], *, what: str, timeout_s: float = 10.0, poll_s: float = 0.01
) -> T:
    """Call `condition` until it returns something true, and return that.

    Fails with `what` and the last value when `timeout_s` passes first. The condition is always
    called at least once, and once more after the deadline, so a slow machine is not a failure.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        late = time.monotonic() >= deadline_s
        value = condition()
        if value:
            return value
        if late:
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last value: {value!r})")
        time.sleep(poll_s)
