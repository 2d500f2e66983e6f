"""Reads files that a person names, says what stands at a name, and waits for nothing.

A name may lead to anything: a pipe waits for a writer, a device has no end, a link may lead to
itself. Rule: what is not a file is refused, and the error says what it is. A pipe that has a
writer, such as the shell makes for `<(command)`, is read for a limited time.
"""

import errno
import hashlib
import io
import os
import select
import stat
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

LONGEST = 2**24
"""Characters: no job, strategy or price table has as many."""
PIPE_S = 5.0
"""The longest time for which a pipe is read, from its opening to its end."""
CACHES = frozenset({"__pycache__"})
"""Folders that hold nothing of their user's."""
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a disk"),
)


def what_is_wrong(path: str | Path, *, folder: bool = False) -> str:
    """Says what stands at `path` in place of a readable file; "" for such a file and, with
    `folder`, for such a folder. It also handles a name that no file can have."""
    wanted = "file or folder" if folder else "file"
    try:
        mode = os.stat(path).st_mode
    except ValueError:
        return f"there is no {wanted} {path}"
    except OSError as error:
        return _why_not_there(path, error, wanted)
    if folder and stat.S_ISDIR(mode):
        return "" if os.access(path, os.R_OK | os.X_OK) else f"{path} is a folder we may not read"
    if not stat.S_ISREG(mode):
        return f"{path} is {_kind(mode)}, no {wanted}"
    return "" if os.access(path, os.R_OK) else f"{path} is a file we may not read"


def files_below(
    folder: Path,
    without: Collection[str] = CACHES,
    *,
    said: Callable[[str], None] | None = None,
) -> list[Path]:
    """The files below a folder by their relative paths, without hidden ones, links to folders, and
    folders `without` these names. `said` is told what each one is that is left out: `hidden`,
    `link to a folder`, .... Raises OSError."""
    found = _walk(folder, without, said or (lambda what: None))
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _walk(folder: Path, without: Collection[str], said: Callable[[str], None]) -> Iterator[Path]:
    for entry in folder.iterdir():
        if why := _not_looked_at(entry, without):
            said(why)
        elif entry.is_dir():
            yield from _walk(entry, without, said)
        else:
            yield entry


def _not_looked_at(entry: Path, without: Collection[str]) -> str:
    """Why it is left out; "" for what is not."""
    if entry.name.startswith("."):
        return "hidden"
    if entry.is_dir():
        if entry.name in without:
            return f"{entry.name} folder"
        return "link to a folder" if entry.is_symlink() else ""
    if entry.is_file():
        return ""
    return "broken link" if entry.is_symlink() else "no regular file"


def _why_not_there(path: str | Path, error: OSError, wanted: str) -> str:
    if error.errno == errno.ELOOP:
        return f"{path} is a link that leads to itself"
    if error.errno == errno.EACCES:
        return f"{path} lies in a folder we may not enter"
    if os.path.islink(path):
        return f"{path} is a link to {os.readlink(path)}, which is not there"
    return f"there is no {wanted} {path}"


def open_named(path: Path, *, follow: bool = True) -> BinaryIO:
    """A file, open for reading. With `follow`, a link to a file is accepted. Raises OSError, whose
    `strerror` says what stands there if it is not a file."""
    # A socket cannot be opened, and opening some devices has effects.
    refuse_unless_file(os.stat(path, follow_symlinks=follow).st_mode, path)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        refuse_unless_file(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def read_bounded(path: Path, *, encoding: str = "utf-8", most: int = LONGEST) -> str:
    """The text of a file, or of a pipe that has a writer. Raises OSError, UnicodeDecodeError, and
    ValueError for one of `most` characters or more."""
    is_pipe = stat.S_ISFIFO(os.stat(path).st_mode)
    return _text(io.BytesIO(_of_pipe(path, most)) if is_pipe else open_named(path), encoding, most)


def read_own(path: Path, *, most: int | None = None) -> str:
    """The text of a file that Bamboo itself has written, where no pipe is expected. Raises as
    `read_bounded` does."""
    return _text(open_named(path), "utf-8", most)


def _text(opened: BinaryIO, encoding: str, most: int | None) -> str:
    with io.TextIOWrapper(opened, encoding=encoding) as file:
        text = file.read(most)
    if len(text) == most:
        raise ValueError(f"it is longer than any, {most:,} characters and more")
    return text


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_pipe(path: Path, most: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data, end_s = b"", time.monotonic() + PIPE_S
        while len(data) <= 4 * most:  # a character of UTF-8 has at most four bytes
            left_s = end_s - time.monotonic()
            readable, _, _ = select.select([descriptor], [], [], max(0.0, left_s))
            if not readable:
                raise OSError(
                    errno.ETIMEDOUT,
                    f"it is a pipe (FIFO) that nobody wrote to its end within {PIPE_S:g} s",
                    str(path),
                )
            part = os.read(descriptor, 1 << 16)
            if not part:
                return data
            data += part
        return data
    finally:
        os.close(descriptor)


def refuse_unless_file(mode: int, path: Path) -> None:
    """Raise OSError if `st_mode` is not that of a file; its `strerror` says what it is."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_kind(mode)}, no file", str(path))


def _kind(mode: int) -> str:
    return next((name for test, name in _KINDS if test(mode)), "something else")
