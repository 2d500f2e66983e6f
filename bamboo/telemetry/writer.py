"""Appends JSON lines to a file, one whole line per write, so that a kill can tear only the last.

A line goes to the operating system in one `write` on a descriptor opened for appending: several
writers of one file do not mix their lines, and nothing waits in a buffer of a process that dies.
"""

import os
from pathlib import Path
from types import TracebackType

from bamboo.errors import BambooError


class LineWriter:
    """An open JSON-lines file. Use as a context manager, or call `close`."""

    def __init__(self, path: Path) -> None:
        """Open for appending; the folder is made if it is missing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if not _ends_with_newline(path):
            os.write(self._descriptor, b"\n")

    def write(self, line: str) -> None:
        """Append one record. Raises BambooError when the disk does not take all of it."""
        if "\n" in line:
            raise ValueError("a record is one line")
        data = line.encode() + b"\n"
        written = os.write(self._descriptor, data)
        if written != len(data):
            raise BambooError(
                f"{self._path}: wrote {written} of {len(data)} bytes; free some disk space"
            )

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


def _ends_with_newline(path: Path) -> bool:
    """True for an empty file too: only a torn line needs closing before the next record."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
