"""The user's request to end: the first Ctrl-C ends the run at a step boundary, the second at once.

Before the loop runs there is no step to finish, so a signal there is KeyboardInterrupt as usual,
and the launcher's cleanup runs. With SIGTERM and SIGHUP nobody waits, so they end at once.

The launcher of a detached run has no user in front of it. There, these two signals end the launcher
and the run goes on; Ctrl-C is ignored.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AT_ONCE = 2


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back Ctrl-C until the end of the block. What begins inside is thus known to the code
    that has to end it before anything is interrupted."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):
        before(came[0], None)


class Interrupts:
    """Counts requests; 0: none, 1: end at the next step boundary, 2 and more: at once. With
    `detached` none is counted once the run goes on, but the process may have to leave."""

    def __init__(self, *, detached: bool = False) -> None:
        self._detached = detached
        self._count = 0
        self._leaving = False
        self._gentle = False

    @property
    def count(self) -> int:
        return self._count

    @property
    def leaving(self) -> bool:
        """Whether this process is to exit and leave the run alone."""
        return self._leaving

    def start_counting(self) -> None:
        """From here on the loop reads `count`, and signals no longer raise."""
        self._gentle = True

    @contextmanager
    def listening(self) -> Iterator["Interrupts"]:
        """Handle the three signals inside the block, and restore the old handlers after it."""
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._signalled) for number in wanted}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self._detached and self._gentle:
            self._leaving = self._leaving or number != signal.SIGINT
            return
        self._count += 1 if number == signal.SIGINT else AT_ONCE
        if not self._gentle:
            # A second signal must not break into the cleanup that this one begins.
            self._gentle = True
            raise KeyboardInterrupt
