"""Appends JSON lines to a file, one whole line per write, so that a kill can tear only the last.

A line goes to the operating system in one `write` on a descriptor opened for appending. So several
writers of one file do not mix their lines, and no line is lost in the buffer of a process that
dies. A line that does not fit on a full disk is an error of `LineWriter`; `WaitingWriter` keeps it.
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
"""The error numbers that say that a disk, a quota or a file takes no more."""


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
        """Append one record. Raises BooksUnwritable when the disk does not take all of it; the file
        then has no part of it."""
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
        if os.fstat(self._descriptor).st_size == end:  # no other writer has appended since
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
    """Like LineWriter, but a line that the disk does not take is kept in memory, in order, and is
    written as soon as there is space. `troubled` is called once when that begins, with the reason,
    and once with "" when all lines are written."""

    def __init__(self, path: Path, *, troubled: Callable[[str], None]) -> None:
        """Raises BooksUnwritable if the file does not exist and cannot be made."""
        self._writer = LineWriter(path)
        self._troubled = troubled
        self._waiting: deque[str] = deque()
        self._told = False

    def write(self, line: str) -> None:
        """Append one record, now or later."""
        self._waiting.append(line)
        self.flush()

    def flush(self) -> None:
        """Write the lines that wait, if there is space by now."""
        try:
            self._catch_up()
        except BooksUnwritable as error:
            if not self._told:
                self._told = True
                self._troubled(f"{error}; what is to be written waits in memory")

    def close(self) -> None:
        """Raises BooksUnwritable if lines still wait; they are lost with this writer."""
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
    """The system's error for a file in a run's folder, with the remedy."""
    remedy = "make room there" if error.errno in DISK_FULL else "see to its disk"
    return BooksUnwritable(f"cannot write {path}: {error.strerror}; {remedy}")


def _ends_with_newline(path: Path) -> bool:
    """True for an empty file too: only a torn line needs closing before the next record."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def drop_torn_line(path: Path) -> None:
    """Cut off an unfinished last line, whose writer is dead. The call that it would have announced
    was never made."""
    if path.exists():
        text = path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.truncate(path, whole)
