"""What tests of every room share: waiting for a condition, never for a while; fresh processes."""

import os
import subprocess
import sys
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
    Looking takes at most a fifth of a processor, which what is waited for needs too.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        before_s = _worked_s()
        late = time.monotonic() >= deadline_s
        value = condition()
        if value:
            return value
        if late:
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last value: {value!r})")
        time.sleep(max(poll_s, 4 * (_worked_s() - before_s)))


def _worked_s() -> float:
    """Seconds of a processor, of this process and of children that it has seen the end of."""
    return sum(os.times()[:4])


def said_whatever_the_hash(code: str) -> str:
    """What `code` prints: the same in fresh processes whose sets are in other orders."""
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1, "it depends on the order of sets"
    return said.pop()
