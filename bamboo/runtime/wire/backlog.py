"""An ordered queue of work for a thread of its own."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
POLL_S = 0.5


class Backlog(Generic[T]):
    """A queue that knows what is not done yet: an item leaves it when it is done, not when it is
    begun. Any thread may put items; one thread works."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._undone: deque[T] = deque()

    def put(self, item: T) -> None:
        self._undone.append(item)
        self._queue.put(item)

    def undone(self) -> tuple[T, ...]:
        """The items that wait or are being done, in order."""
        return tuple(self._undone.copy())

    def work(self, do: Callable[[T], None], stop: threading.Event) -> None:
        """The thread's body: do each item until `stop` is set and nothing is left."""
        while True:
            try:
                item = self._queue.get(timeout=POLL_S)
            except queue.Empty:
                if stop.is_set():
                    return
                continue
            do(item)
            self._undone.popleft()

    def drained(self, timeout_s: float) -> bool:
        """Wait until all items are done; False when the time is up first."""
        give_up_s = time.monotonic() + timeout_s
        while self._undone:
            if time.monotonic() > give_up_s:
                return False
            time.sleep(0.005)
        return True
