"""Says what is being worked on, once it takes a while, and again while it goes on.

Rule: quick work is silent, so a small job has no line more. A thread says it, because the caller
waits for another process meanwhile.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType

SLOW_S = 2.0
"""Work that takes no longer is not told of."""
AGAIN = 3
"""It is told of again each time that it has taken so many times as long."""


class SlowWork:
    """The work of a block. `note` is told which of it takes a while; the last line comes before the
    block ends."""

    def __init__(self, note: Callable[[str], None], first: str) -> None:
        self._note = note
        self._changed = threading.Condition()
        self._over = False
        self._what = first
        self._far = ""
        self._since_s = 0.0
        self._due_s = 0.0
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> "SlowWork":
        self.begins(self._what)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()

    def begins(self, what: str) -> None:
        """Something else is worked on from now on, in words that go on a sentence."""
        with self._changed:
            self._what = what
            self._far = ""
            self._since_s = time.monotonic()
            self._due_s = self._since_s + SLOW_S

    def reached(self, done: int, of_all: int) -> None:
        """How far it is."""
        with self._changed:
            self._far = f", {done} of {of_all}"

    def _tell(self) -> None:
        with self._changed:
            while not self._over:
                now_s = time.monotonic()
                if now_s < self._due_s:
                    self._changed.wait(self._due_s - now_s)
                    continue
                took_s = now_s - self._since_s
                self._note(f"  still {self._what}{self._far} ({took_s:.0f} s)")
                self._due_s = self._since_s + AGAIN * took_s
