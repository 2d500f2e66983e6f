"""The temporary directory of a local cloud, mode 0700: its sockets, and what its nodes write aside.

    <directory>/*.sock               short names, as a socket's path has little room
    <directory>/scratch/<instance>/  files of that instance's worker on their way; the path may be a
                                     link to where TMPDIR points

Rule: the host makes it, once the reaper runs, which removes all of it when the host is gone. The
scratch files of an instance are deleted with the instance.
"""

import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_SHORT_ENOUGH = 40
"""Longest temporary root: the path of our directory with a socket's name must stay below 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The paths of this run. `directory` is the temporary one, mode 0700."""

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
        """Has the URL of a store that the user named, so that no process's environment has it."""
        return self.directory / "store-url"

    @property
    def zygote(self) -> Path:
        return zygote_of(self.directory)

    @property
    def logs(self) -> Path:
        return self.run_dir / "logs"


def choose_directory() -> Path:
    """Choose a path whose sockets have short names: a free name below TMPDIR, or else /tmp. Nothing
    is made yet, so that its remover can be started first."""
    root = tempfile.gettempdir()
    name = f"bb-{secrets.token_hex(6)}"
    return Path(root if len(root) <= _SHORT_ENOUGH else "/tmp") / name


def make_directory(directory: Path | None = None) -> Path:
    """Make the chosen one, or a new one. Raises FileExistsError."""
    directory = directory or choose_directory()
    directory.mkdir(mode=0o700)
    return directory


def make_scratch(directory: Path) -> None:
    """Make its `scratch`, which is below TMPDIR wherever the sockets are, as it may become big."""
    root, scratch = Path(tempfile.gettempdir()), scratch_of(directory)
    if directory.parent == root:
        scratch.mkdir(mode=0o700)
        return
    elsewhere = root / directory.name
    scratch.symlink_to(elsewhere)  # first, because the remover follows this link
    elsewhere.mkdir(mode=0o700)


def scratch_of(directory: Path) -> Path:
    """Where its instances write scratch files, each in a folder of its own."""
    return directory / "scratch"


def remove_directory(directory: Path) -> None:
    """Remove as much of it as possible; safe to call again."""
    scratch = scratch_of(directory)
    if scratch.is_symlink():
        shutil.rmtree(scratch.resolve(), ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def zygote_of(directory: Path) -> Path:
    """The socket of its fork server."""
    return directory / "zygote.sock"
