"""Where the text comes from: the interpreter's own library, or the user's files. Bytes as tokens.

Rule: the same bytes in the same order on every machine that has the same files.
"""

import os
import sysconfig
from collections.abc import Iterable, Iterator
from os.path import isdir, isfile
from pathlib import Path

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError

LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)
"""Folders of the standard library that hold other people's packages, tests, or no sources."""


def read_source(job: JobConfig) -> bytearray:
    """At most `data.max_bytes` bytes of the job's text. Raises InputError when there is none, or
    what may not be looked into."""
    try:
        if job.data.source == "python-stdlib":
            files = stdlib_files(Path(sysconfig.get_path("stdlib")))
        else:
            files = _user_files(job)
    except OSError as error:
        raise _unreadable(error.filename, error) from error
    return _read(files, job)


def stdlib_files(root: Path) -> list[Path]:
    """The `.py` files of a standard library, by relative path."""
    found = [p for p in _walk(root, LEFT_OUT) if p.suffix == ".py"]
    return sorted(found, key=lambda p: p.relative_to(root).as_posix())


def _user_files(job: JobConfig) -> list[Path]:
    path = Path(job.file).parent / job.data.path
    if isdir(path):  # of a name that nothing can have, pathlib raises
        found = _walk(path, frozenset({"__pycache__"}))
        return sorted(found, key=lambda p: p.relative_to(path).as_posix())
    if isfile(path):
        return [path]
    raise InputError.at(
        file=job.file,
        key="data.path",
        value=job.data.path,
        problem=f"there is no file or folder {path}",
        remedy='name your text, or take source = "python-stdlib"',
    )


def _walk(folder: Path, left_out: frozenset[str]) -> Iterator[Path]:
    """Files below a folder, without hidden ones, links to folders and folders of these names."""
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if entry.name not in left_out and not entry.is_symlink():
                yield from _walk(entry, left_out)
        elif entry.is_file():
            yield entry


def _read(files: Iterable[Path], job: JobConfig) -> bytearray:
    text = bytearray()
    for path in files:
        room = job.data.max_bytes - len(text)
        if room <= 0:
            break
        try:
            with path.open("rb") as file:
                # A read makes room for all that it may bring.
                text += file.read(min(room, os.fstat(file.fileno()).st_size))
        except OSError as error:
            raise _unreadable(path, error) from error
    return text


def _unreadable(path: Path | str, error: OSError) -> InputError:
    return InputError(f"{path}: {error.strerror}; make it readable or leave it out")
