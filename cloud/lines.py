"""Appends lines to the cloud's own files of a run: what it intends, what it bills, what it kills.

Rule: a line stands in the file whole or not at all, so that a full disk damages nothing.
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from bamboo.errors import BooksUnwritable


def append_line(path: Path, line: str) -> None:
    """Append one line to a file of which this process is the only writer. Raises BooksUnwritable
    when the disk does not take all of it."""
    data = line.encode() + b"\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            written = os.write(descriptor, data)
            if written != len(data):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise BooksUnwritable(f"cannot write {path}: {error.strerror}; make room there") from error


class WaitingLines:
    """A file whose lines wait in memory while the disk takes none, and are written in their order
    as soon as it does. `tell` hears once of either."""

    def __init__(self, path: Path, *, tell: Callable[[str], None]) -> None:
        self._path = path
        self._tell = tell
        self._waiting: deque[str] = deque()
        self._told = False

    def append(self, line: str) -> None:
        """Append one line, now or with a later one."""
        self._waiting.append(line)
        self.catch_up()

    def catch_up(self) -> None:
        """Write what waits, if there is room."""
        try:
            while self._waiting:
                append_line(self._path, self._waiting[0])
                self._waiting.popleft()
        except BooksUnwritable as error:
            if not self._told:
                self._tell(f"{error}; what is to be written waits in memory")
            self._told = True
            return
        if self._told:
            self._told = False
            self._tell(f"{self._path} is written again")
