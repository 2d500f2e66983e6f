"""Checkpoints in a directory: implements `ports.ObjectStore` over files.

Rule: an object is written under another name, flushed to the disk, and only then gets its name. So
a process that dies in between leaves a stray file and never half an object; a caller that knows
that nobody writes there any more deletes it. Only a regular file is an object: a folder or a link
in its place counts as nothing, and below the root no link is followed. A root that another user has
placed there is not used.
"""

import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from bamboo.errors import StorageFull, StorageUnavailable
from bamboo.jsonl import DISK_FULL
from bamboo.new_files import copy_all, whole_file, whole_file_in
from bamboo.ports import SMALL_BYTES

_ASIDE = ".aside-"
_DEEPEST = 16
"""The most folders in an object's name."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
"""The system's errors when a name leads to no file of the run: no file, a file in the place of a
folder, a link, a socket."""


class DirectoryStore:
    """Objects below `root`, which is made when the first object is written."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put_file(self, name: str, path: Path) -> None:
        with self._trouble(name), path.open("rb") as source:
            self._put(name, source, replace=True)

    def put_new(self, name: str, data: bytes) -> bool:
        with self._trouble(name):
            return self._put(name, data, replace=False)

    def _put(self, name: str, content: BinaryIO | bytes, *, replace: bool) -> bool:
        *folders, last = _parts(name)
        with self._folder(folders, make=True) as folder:
            try:
                with whole_file_in(folder, last, aside=_ASIDE, replace=replace) as file:
                    if isinstance(content, bytes):
                        file.write(content)
                    else:
                        copy_all(content, file)
                    file.flush()
                    os.fsync(file.fileno())
            except FileExistsError:
                if replace:
                    raise
                return False
            os.fsync(folder)
        return True

    def get(self, name: str) -> bytes | None:
        with self._trouble(name, to="read"), self._opened(name) as file:
            return None if file is None else file.read(SMALL_BYTES)

    def part(self, name: str, begin: int, end: int) -> bytes | None:
        with self._trouble(name, to="read"), self._opened(name) as file:
            if file is None:
                return None
            file.seek(begin)
            return file.read(end - begin)

    def fetch(self, name: str, path: Path) -> bool:
        with self._trouble(name, to="read"), self._opened(name) as file:
            if file is None:
                return False
            with whole_file(path) as copy:
                copy_all(file, copy)
        return True

    def sizes(self, prefix: str) -> Mapping[str, int]:
        return {
            name: status.st_size
            for name, status in self._found(prefix)
            if stat.S_ISREG(status.st_mode) and not _is_stray(name)
        }

    def strays(self, prefix: str) -> Collection[str]:
        return [name for name, _ in self._found(prefix) if _is_stray(name)]

    def delete(self, name: str) -> None:
        *folders, last = _parts(name, stray=True)
        with self._trouble(name):
            try:
                with self._folder(folders) as folder:
                    os.unlink(last, dir_fd=folder)
            except IsADirectoryError:
                folders.append(last)  # its name becomes free with the last object below it
            except (FileNotFoundError, NotADirectoryError):
                pass
            while folders and self._removed(folders):
                folders.pop()

    def _removed(self, folders: Sequence[str]) -> bool:
        """Remove the innermost of these folders if it is empty; returns whether it is gone."""
        try:
            with self._folder(folders[:-1]) as outer:
                os.rmdir(folders[-1], dir_fd=outer)
        except OSError as error:
            if error.errno in _NOTHING or error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return error.errno == errno.ENOENT
            raise
        return True

    def _found(self, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
        """Name and status of all but folders whose name begins with `prefix`, in order."""
        found, waiting = [], [prefix.split("/")[:-1]]
        with self._trouble(prefix, to="read"):
            while waiting:
                parts = waiting.pop()
                for entry, status in self._entries(parts):
                    name = "/".join((*parts, entry))
                    if not name.startswith(prefix):
                        continue
                    if not stat.S_ISDIR(status.st_mode):
                        found.append((name, status))
                    elif len(parts) < _DEEPEST:
                        waiting.append([*parts, entry])
        return iter(sorted(found, key=lambda one: one[0]))

    def _entries(self, parts: Sequence[str]) -> list[tuple[str, os.stat_result]]:
        out = []
        try:
            with self._folder(parts) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        out.append((entry.name, entry.stat(follow_symlinks=False)))
        except OSError as error:
            if error.errno not in _NOTHING:
                raise
        return out

    @contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO | None]:
        """An object, open for reading; None when there is none."""
        *folders, last = _parts(name)
        try:
            with self._folder(folders) as folder:
                descriptor = os.open(last, _FILE, dir_fd=folder)
        except OSError as error:
            if error.errno not in _NOTHING:
                raise
            yield None
            return
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            yield None
            return
        with open(descriptor, "rb") as file:
            yield file

    @contextmanager
    def _folder(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """A folder below the root, open. Raises OSError, whose `strerror` names a link."""
        if make:
            self._root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._root, _FOLDER)
        try:
            self._refuse_strangers(descriptor)
            for part in parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=descriptor)
                inner = _inner(descriptor, part)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _refuse_strangers(self, root: int) -> None:
        """Any user who may write to the folder around it, as all may to /tmp, can have put it
        there."""
        trusted = {0, os.geteuid(), self._root.parent.stat().st_uid}
        for status in (os.lstat(self._root), os.fstat(root)):
            if status.st_uid not in trusted:
                raise PermissionError(
                    errno.EPERM,
                    f"it belongs to another user (uid {status.st_uid})",
                    str(self._root),
                )

    @contextmanager
    def _trouble(self, name: str, *, to: str = "written") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = self._root / name
            if error.errno in DISK_FULL:
                raise StorageFull(
                    f"{where}: {error.strerror}; make room, or keep fewer checkpoints"
                ) from error
            raise StorageUnavailable(
                f"{where}: {error.strerror or error}; see that the directory can be {to}"
            ) from error


def _inner(folder: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError as error:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            words = f"{name} is a link, which is not followed"
            raise OSError(errno.ELOOP, words) from error
        raise


def _is_stray(name: str) -> bool:
    return name.rpartition("/")[2].startswith(_ASIDE)


def _parts(name: str, *, stray: bool = False) -> list[str]:
    """The folders and the file of an object. Raises ValueError."""
    parts = name.split("/")
    objects = parts[:-1] if stray else parts
    if any(part in ("", ".", "..") for part in parts) or any(
        part.startswith(_ASIDE) for part in objects
    ):
        raise ValueError(f"{name!r} is no name of an object")
    return parts
