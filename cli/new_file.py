"""Writes a file that a user asked for, where `-` is standard output."""

from pathlib import Path

from bamboo import asked_files
from cli.echo import echo_result

STDOUT = "-"


def refuse_to_overwrite(path: Path, *, force: bool) -> None:
    """Check this before the work whose result goes to `path`. Raises InputError."""
    if str(path) != STDOUT:
        asked_files.refuse_to_overwrite(path, force=force)


def write_new(path: Path, data: bytes, *, force: bool, mode: int = 0o666) -> None:
    """Make this file as `bamboo.asked_files` does, or print it. Raises InputError."""
    if str(path) == STDOUT:
        echo_result(data)
    else:
        asked_files.write_new(path, data, force=force, mode=mode)
