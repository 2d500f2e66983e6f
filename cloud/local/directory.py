"""The temporary directory of a local cloud, mode 0700: its sockets, and what its nodes write aside.

    <directory>/*.sock               short names, as a socket's path has little room
    <directory>/scratch/<instance>/  files of that instance's worker on their way; the path may be a
                                     link to where TMPDIR points

Rule: the host makes it, and whoever is the last to see the host gone removes all of it; what an
instance wrote aside goes with the instance.
"""

import shutil
import tempfile
from pathlib import Path

_SHORT_ENOUGH = 40
"""Longest temporary root: a directory of ours plus a socket name must stay below 100."""


def make_directory() -> Path:
    """A new one whose sockets have short names, below TMPDIR or else /tmp."""
    root = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="bb-", dir=root if len(root) <= _SHORT_ENOUGH else "/tmp"))


def make_scratch(directory: Path) -> None:
    """Make its `scratch`, which lies below TMPDIR wherever the sockets lie: it may become big."""
    root, scratch = Path(tempfile.gettempdir()), scratch_of(directory)
    if directory.parent == root:
        scratch.mkdir(mode=0o700)
    else:
        scratch.symlink_to(tempfile.mkdtemp(prefix=f"{directory.name}-", dir=root))


def scratch_of(directory: Path) -> Path:
    """Where its instances write aside, each in a folder of its own."""
    return directory / "scratch"


def remove_directory(directory: Path) -> None:
    """Remove all of it that can be; safe to call again."""
    scratch = scratch_of(directory)
    if scratch.is_symlink():
        shutil.rmtree(scratch.resolve(), ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)
