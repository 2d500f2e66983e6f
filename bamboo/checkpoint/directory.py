"""Checkpoints in a directory: `ports.ObjectStore` over files.

Rule: an object is written aside, flushed to the disk, and only then gets its name; so a process
that dies in between leaves a stray file and never half an object; who knows that nobody writes
there any more deletes it. What is no regular file is no
object: a folder in the place of one is as good as nothing there.
"""

import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bamboo.errors import StorageFull, StorageUnavailable
from bamboo.lines import DISK_FULL
from bamboo.ports import SMALL_BYTES

_ASIDE = ".aside-"


class DirectoryStore:
    """Objects below `root`, which is made when the first one is written."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put_file(self, name: str, path: Path) -> None:
        target = self._path(name)
        with self._trouble(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.parent / f"{_ASIDE}{uuid.uuid4().hex}"
            try:
                shutil.copyfile(path, aside)
                _flush(aside)
                aside.replace(target)
                _flush(target.parent)
            finally:
                aside.unlink(missing_ok=True)

    def put_new(self, name: str, data: bytes) -> bool:
        target = self._path(name)
        with self._trouble(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.parent / f"{_ASIDE}{uuid.uuid4().hex}"
            try:
                aside.write_bytes(data)
                _flush(aside)
                os.link(aside, target)  # fails when the name is taken, which `rename` does not
                _flush(target.parent)
            except FileExistsError:
                return False
            finally:
                aside.unlink(missing_ok=True)
        return True

    def get(self, name: str) -> bytes | None:
        path = self._path(name)
        with self._trouble(name, to="read"):
            try:
                if not path.is_file():
                    return None
                with path.open("rb") as file:
                    return file.read(SMALL_BYTES)
            except FileNotFoundError:
                return None

    def fetch(self, name: str, path: Path) -> bool:
        source = self._path(name)
        with self._trouble(name, to="read"):
            try:
                if not source.is_file():
                    return False
                shutil.copyfile(source, path)
            except FileNotFoundError:
                if not path.parent.is_dir():
                    raise
                return False
        return True

    def sizes(self, prefix: str) -> Mapping[str, int]:
        out: dict[str, int] = {}
        for name, path in self._found(prefix):
            if not path.name.startswith(_ASIDE):
                with self._trouble(prefix, to="read"), suppress(FileNotFoundError):
                    if path.is_file():
                        out[name] = path.stat().st_size
        return out

    def strays(self, prefix: str) -> Collection[str]:
        return [name for name, path in self._found(prefix) if path.name.startswith(_ASIDE)]

    def delete(self, name: str) -> None:
        with self._trouble(name):
            path = self._path(name, stray=True)
            folders = path.parents
            if path.is_dir() and not path.is_symlink():
                folders = (path, *folders)  # its name becomes free with the last object below
            else:
                path.unlink(missing_ok=True)
            for folder in folders:
                if folder == self._root or not folder.is_dir() or any(folder.iterdir()):
                    break
                folder.rmdir()

    def _found(self, prefix: str) -> Iterator[tuple[str, Path]]:
        """Name and path of everything whose name begins with `prefix`, folders too."""
        with self._trouble(prefix, to="read"):
            paths = sorted(self._root.rglob("*"))
        for path in paths:
            name = path.relative_to(self._root).as_posix()
            if name.startswith(prefix):
                yield name, path

    def _path(self, name: str, *, stray: bool = False) -> Path:
        parts = name.split("/")
        objects = parts[:-1] if stray else parts
        if any(part in ("", ".", "..") for part in parts) or any(
            part.startswith(_ASIDE) for part in objects
        ):
            raise ValueError(f"{name!r} is no name of an object")
        return self._root.joinpath(*parts)

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


def _flush(path: Path) -> None:
    """Bring a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
