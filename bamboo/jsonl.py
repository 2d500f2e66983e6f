"""Appends JSON lines to a file, one whole line per write, so that a kill can tear only the last.

A line goes to the operating system in one `write` on a descriptor opened for appending: several
writers of one file do not mix their lines, and nothing waits in a buffer of a process that dies. A
line that a full disk does not take is an error of `LineWriter`, and waits in `WaitingWriter`.
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from bamboo.errors import BooksUnwritable
from bamboo.new_files import open_to_append

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system calls a disk, a share of it, or a file, that takes no more."""


class LineWriter:
    """An open JSON-lines file. Use as a context manager, or call `close`."""

    def __init__(self, path: Path) -> None:
        """Open for appending; the folder is made if it is missing. Raises BooksUnwritable."""
        self._path = path
        self._descriptor = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_to_append(path) as file:
                self._descriptor = os.dup(file.fileno())
            self._torn = not _ends_with_newline(path)
        except OSError as error:
            self.close()
            raise unwritable(path, error) from error

    def write(self, line: str) -> None:
        """Append one record. Raises BooksUnwritable when the disk does not take all of it; there is
        nothing of it in the file then."""
        if "\n" in line:
            raise ValueError("a record is one line")
        data = (b"\n" if self._torn else b"") + line.encode() + b"\n"
        try:
            written = os.write(self._descriptor, data)
            if written != len(data):
                self._take_back(written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise unwritable(self._path, error) from error
        self._torn = False

    def _take_back(self, written: int) -> None:
        end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        if os.fstat(self._descriptor).st_size == end:  # nobody has written after it
            os.ftruncate(self._descriptor, end - written)
        else:
            self._torn = True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "LineWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class WaitingWriter:
    """As LineWriter, but a line that the disk does not take waits in memory, before those that come
    later, and is written as soon as there is room. `troubled` is told once when that begins, with
    the reason, and once with "" when all is written."""

    def __init__(self, path: Path, *, troubled: Callable[[str], None]) -> None:
        """Raises BooksUnwritable where there is no such file and none can be made."""
        self._writer = LineWriter(path)
        self._troubled = troubled
        self._waiting: deque[str] = deque()
        self._told = False

    def write(self, line: str) -> None:
        """Append one record, now or later."""
        self._waiting.append(line)
        self.flush()

    def flush(self) -> None:
        """Write what waits, if there is room by now."""
        try:
            self._catch_up()
        except BooksUnwritable as error:
            if not self._told:
                self._told = True
                self._troubled(f"{error}; what is to be written waits in memory")

    def close(self) -> None:
        """Raises BooksUnwritable when something still waits: it is lost with this writer."""
        try:
            self._catch_up()
        finally:
            self._writer.close()

    def _catch_up(self) -> None:
        while self._waiting:
            self._writer.write(self._waiting[0])
            self._waiting.popleft()
        if self._told:
            self._told = False
            self._troubled("")


def unwritable(path: Path, error: OSError) -> BooksUnwritable:
    """What the system said of a file in a run's folder, and what to do."""
    remedy = "make room there" if error.errno in DISK_FULL else "see to its disk"
    return BooksUnwritable(f"cannot write {path}: {error.strerror}; {remedy}")


def _ends_with_newline(path: Path) -> bool:
    """True for an empty file too: only a torn line needs closing before the next record."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
