"""Reads the text of a job: the interpreter's own library, or the user's files. Bytes are the
tokens.

Rule: the same bytes in the same order on every machine that has the same files.
"""

import os
import sys
import sysconfig
from collections.abc import Sequence
from os.path import isfile
from pathlib import Path
from typing import Any

from bamboo.config.tree import JobConfig
from bamboo.data.described import Description
from bamboo.errors import InputError
from bamboo.named_files import CACHES, files_below, open_named, what_is_wrong

MOST_BYTES = 2_000_000_000
"""The whole text of a job lies in the memory of each node."""
LEFT_OUT = CACHES | {"site-packages", "dist-packages", "test", "tests", "idle_test"}
"""Folders of the standard library that hold other people's packages, tests, or no sources."""


def read_source(job: JobConfig, *, section: str = "data") -> bytearray:
    """The first `data.max_bytes` bytes of the job's text, or all of it (0); `section` is the one of
    the job file that names it. Raises InputError when there is none, when a file or folder cannot
    be read, or when it exceeds MOST_BYTES."""
    return _source(job, None, section)


def read_described(job: JobConfig) -> tuple[bytearray, dict[str, Any]]:
    """The same, and its description: `Description.body`. Raises the same errors as
    `read_source`."""
    said = Description(max_bytes=job.data.max_bytes)
    return _source(job, said, "data"), said.body()


def _source(job: JobConfig, said: Description | None, section: str) -> bytearray:
    try:
        if job.data.source == "python-stdlib":
            root = Path(sysconfig.get_path("stdlib"))
            files = stdlib_files(root)
        else:
            root = job.named(job.data.path)
            files = _user_files(job, said, section)
    except OSError as error:
        raise _unreadable(error.filename, error) from error
    return _read(files, job, root, said, section)


def stdlib_files(root: Path) -> list[Path]:
    """The `.py` files of a standard library, by relative path."""
    return [p for p in files_below(root, LEFT_OUT) if p.suffix == ".py"]


def _user_files(job: JobConfig, said: Description | None, section: str) -> list[Path]:
    path = job.named(job.data.path)
    if wrong := what_is_wrong(path, folder=True):
        raise InputError.at(
            file=job.file,
            key=f"{section}.path",
            value=job.data.path,
            problem=wrong,
            remedy='name your text, or take source = "python-stdlib"',
        )
    if isfile(path):
        return [path]
    return files_below(path, said=None if said is None else said.left_out)


def _read(
    files: Sequence[Path], job: JobConfig, root: Path, said: Description | None, section: str
) -> bytearray:
    most = job.data.max_bytes or MOST_BYTES
    wanted = min(sum(map(_size_bytes, files)), job.data.max_bytes or sys.maxsize)
    if wanted > MOST_BYTES:
        of_eval = section == "eval"  # which says by its samples how much is read
        fewer = "a smaller eval.samples" if of_eval else f"data.max_bytes = {MOST_BYTES}"
        raise InputError.at(
            file=job.file,
            key="eval.samples" if of_eval else "data.max_bytes",
            value=job.eval.samples if of_eval else job.data.max_bytes,
            problem=f"asks for {wanted:,} bytes of {root}, and each node reads them into its "
            f"memory: {MOST_BYTES:,} are the most until they are read as they are needed",
            remedy=f"take fewer files, or {fewer} for the first of them",
        )
    text = bytearray()
    for path in files:
        room = most - len(text)
        if room <= 0:
            if said is None:
                break
            said.there(_size_bytes(path))
            continue
        try:
            with open_named(path) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                # A read allocates memory for all that it may return.
                part = file.read(min(room, size_bytes))
        except OSError as error:
            raise _unreadable(path, error) from error
        text += part
        if said is not None:
            said.there(size_bytes)
            said.read(path.name if path == root else path.relative_to(root).as_posix(), part)
    return text


def _size_bytes(path: Path) -> int:
    """The size of a file that is not read: if it is gone by now, nothing is missing."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _unreadable(path: Path | str, error: OSError) -> InputError:
    return InputError(f"{path}: {error.strerror}; make it readable or leave it out")
