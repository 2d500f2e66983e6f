"""A disk that is full: for real on a small tmpfs, or as a limit on how long a file may become."""

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """In this block no file of this process grows beyond `size` bytes: the write that would is cut
    short by the kernel, and the next one refused."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def small_disk(folder: Path, *, size: str) -> Iterator[Path]:
    """A disk of that size at `folder`; the test is skipped where none may be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError as error:
        pytest.skip(f"no small disk: {error}")
    if done.returncode != 0:
        pytest.skip(f"no small disk may be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], timeout=20, check=True)


def fill(path: Path) -> None:
    """Take all the room that is left on the disk of `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.suppress(OSError):
        while True:
            os.write(descriptor, b"\0" * 4096)
    os.close(descriptor)
