"""Writes files safely, even if somebody else has placed a link or a pipe at their names.

Rule: every file that this program writes is opened here. A new file is made under a name that
nobody can guess and is then renamed, so that no link is followed and no pipe is waited for. A file
that is appended to must be a file, not a link to one.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from bamboo.named_files import refuse_unless_file

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MORE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
ONLY_ME = 0o600
_AT_ONCE_BYTES = 1 << 26
_NO_SENDING = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV})


@contextmanager
def whole_file(path: Path, *, mode: int = ONLY_ME, replace: bool = True) -> Iterator[BinaryIO]:
    """A new file to write to. When the block ends without an error it gets its name, with all that
    was written; otherwise nothing of it is left. It replaces what stands at the name (a link
    itself, not its target); without `replace` that is a FileExistsError. Raises OSError."""
    folder = os.open(path.parent, _FOLDER)
    try:
        with whole_file_in(folder, path.name, mode=mode, replace=replace) as file:
            yield file
    finally:
        os.close(folder)


@contextmanager
def whole_file_in(
    folder: int, name: str, *, aside: str = ".", mode: int = ONLY_ME, replace: bool = True
) -> Iterator[BinaryIO]:
    """Like `whole_file`, in a folder that is open; until its end its name begins with `aside`."""
    now = f"{aside}{uuid.uuid4().hex}"
    with open(os.open(now, _NEW, mode, dir_fd=folder), "wb") as file:
        try:
            yield file
            file.flush()
            if replace:
                os.replace(now, name, src_dir_fd=folder, dst_dir_fd=folder)
            else:  # `rename` would not check
                os.link(now, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(now, dir_fd=folder)


def write_whole(path: Path, data: bytes | bytearray, *, mode: int = ONLY_ME) -> None:
    """Write a whole file or nothing, in place of what stands at the name. Raises OSError."""
    with whole_file(path, mode=mode) as file:
        file.write(data)


def copy_all(source: BinaryIO, target: BinaryIO) -> None:
    """Append the rest of an open file, from which nothing was read yet, to another file. The bytes
    do not pass through this process where the system can copy them. Raises OSError."""
    target.flush()
    try:
        while os.sendfile(target.fileno(), source.fileno(), None, _AT_ONCE_BYTES):
            pass
    except OSError as error:
        if error.errno not in _NO_SENDING:
            raise
        shutil.copyfileobj(source, target, 1 << 20)


def open_in_place(path: Path) -> int:
    """The descriptor of a file that is there, to be read, and written at any place. Raises
    OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        refuse_unless_file(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_to_append(path: Path) -> FileIO:
    """A file, made if it is missing, whose every write goes directly to its end. Raises OSError,
    whose `strerror` says what stands there if it is not a file."""
    with suppress(FileNotFoundError):
        refuse_unless_file(os.lstat(path).st_mode, path)
    descriptor = os.open(path, _MORE, ONLY_ME)
    try:
        refuse_unless_file(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "ab", buffering=0)
