"""The temporary directory of a local cloud, mode 0700: its sockets, and what its nodes write aside.

    <directory>/*.sock               short names, as a socket's path has little room
    <directory>/scratch/<instance>/  files of that instance's worker on their way; the path may be a
                                     link to where TMPDIR points

Rule: the host makes it, once somebody runs who will see the host gone and then remove all of it;
what an instance wrote aside goes with the instance.
"""

import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_SHORT_ENOUGH = 40
"""Longest temporary root: a directory of ours plus a socket name must stay below 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things of this run lie. `directory` is the temporary one, mode 0700."""

    directory: Path
    run_dir: Path

    @property
    def control(self) -> Path:
        return self.directory / "control.sock"

    @property
    def store(self) -> Path:
        return self.directory / "valkey.sock"

    @property
    def store_url(self) -> Path:
        """Has the URL of the store that the user named: in no process's environment then."""
        return self.directory / "store-url"

    @property
    def zygote(self) -> Path:
        return zygote_of(self.directory)

    @property
    def logs(self) -> Path:
        return self.run_dir / "logs"


def choose_directory() -> Path:
    """Where to make one whose sockets have short names: a free name below TMPDIR or else /tmp.
    Nothing is made yet, so that its remover can be started first."""
    root = tempfile.gettempdir()
    name = f"bb-{secrets.token_hex(6)}"
    return Path(root if len(root) <= _SHORT_ENOUGH else "/tmp") / name


def make_directory(directory: Path | None = None) -> Path:
    """Make the chosen one, else a new one. Raises FileExistsError."""
    directory = directory or choose_directory()
    directory.mkdir(mode=0o700)
    return directory


def make_scratch(directory: Path) -> None:
    """Make its `scratch`, which lies below TMPDIR wherever the sockets lie: it may become big."""
    root, scratch = Path(tempfile.gettempdir()), scratch_of(directory)
    if directory.parent == root:
        scratch.mkdir(mode=0o700)
        return
    elsewhere = root / directory.name
    scratch.symlink_to(elsewhere)  # first, as who removes it looks where this leads
    elsewhere.mkdir(mode=0o700)


def scratch_of(directory: Path) -> Path:
    """Where its instances write aside, each in a folder of its own."""
    return directory / "scratch"


def remove_directory(directory: Path) -> None:
    """Remove all of it that can be; safe to call again."""
    scratch = scratch_of(directory)
    if scratch.is_symlink():
        shutil.rmtree(scratch.resolve(), ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def zygote_of(directory: Path) -> Path:
    """The socket of its fork server."""
    return directory / "zygote.sock"
