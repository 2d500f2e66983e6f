"""Decisions on their way from the thread that reads the log to the one that trains."""

import threading
from collections import deque

from bamboo.core.state import State
from bamboo.runtime.state.decision import Decided


class Inbound:
    """Decisions that were read and are not applied yet, oldest first. Any thread may call `append`;
    all other methods are for the thread that applies them."""

    def __init__(self) -> None:
        self._waiting: deque[Decided] = deque()
        self._came = threading.Event()

    def append(self, decided: Decided) -> None:
        self._waiting.append(decided)
        self._came.set()

    def popleft(self) -> Decided:
        """Take the oldest. Raises IndexError when there is none."""
        return self._waiting.popleft()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def states(self) -> tuple[State, ...]:
        """The states after each of the decisions."""
        return tuple(decided.state for decided in tuple(self._waiting))

    def wait(self, timeout_s: float) -> bool:
        """Wait until one more has come since this last returned True; False when the time is up."""
        came = self._came.wait(timeout_s)
        self._came.clear()
        return came
