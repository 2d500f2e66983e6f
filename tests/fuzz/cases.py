"""How a case of fuzzing is judged: the input is read, or refused by name in one line, and soon.

`make test` reads FEW cases of each kind, always the same; `make fuzz` sets BAMBOO_FUZZ_CASES and
draws others each time. What it finds is mended with a plain test in the room it was found in.
"""

import os
import time
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, settings

from cli.main import one_line

FEW = 60
CASES = int(os.environ.get("BAMBOO_FUZZ_CASES", FEW))
LONGEST_S = 5.0
"""Of processor time, for one case: what takes longer can be made to take for ever."""
LONGEST_LINE = 2500

fuzzed = settings(
    max_examples=CASES,
    derandomize=CASES == FEW,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

T = TypeVar("T")


class Cases:
    """The count of one test."""

    def __init__(self) -> None:
        self.read = self.refused = 0
        self.slowest_s = 0.0

    def judge(self, load: Callable[[], T], *refusals: type[Exception]) -> T | None:
        """What `load` gives, or None where it raises one of these; anything else is a finding."""
        began_s = time.process_time()
        value: T | None = None
        said: Exception | None = None
        try:
            value = load()
            self.read += 1
        except refusals as error:
            self.refused += 1
            said = error
        if said is not None:
            line = one_line(str(said))
            assert line, f"{said!r} says nothing"
            assert line.isprintable(), f"{line!r} cannot be shown"
            assert len(line) <= LONGEST_LINE, f"a line of {len(line)} characters"
        took_s = time.process_time() - began_s
        self.slowest_s = max(self.slowest_s, took_s)
        assert took_s < LONGEST_S, f"it took {took_s:.1f} s"
        return value

    def summary(self) -> str:
        return (
            f"{self.read + self.refused:,} cases, {self.refused:,} refused, {self.read:,} read, "
            f"slowest {self.slowest_s * 1000:.0f} ms"
        )
