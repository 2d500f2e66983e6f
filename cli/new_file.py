"""Writing a file that a user asked for: whole or not at all, and never over another unasked.

Rule: it is written aside and then renamed, so a full disk leaves what was there; every fault of the
disk is one line with the path and what to do.
"""

import os
import uuid
from pathlib import Path

from bamboo.errors import InputError
from bamboo.lines import DISK_FULL
from bamboo.private_files import users_umask
from cli.echo import echo_result

STDOUT = "-"


def refuse_to_overwrite(path: Path, *, force: bool) -> None:
    """Before the work is done that `path` is to hold. Raises InputError."""
    if str(path) == STDOUT:
        return
    try:
        if "\0" in str(path):  # which the system would take for the end of the name
            raise ValueError("a name has no zero byte")
        there, is_file, has_folder = path.exists(), path.is_file(), path.parent.is_dir()
    except (OSError, ValueError) as error:  # too long a name, a folder that may not be entered
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be written: {why}; give another path") from error
    if not there and Path(os.path.realpath(path)).is_symlink():
        raise InputError(f"{path} is a link that leads to itself; give another path")
    if there and not is_file:
        raise InputError(f"{path} is no file that could be written; give the name of a new one")
    if there and not force:
        raise InputError(f"{path} is there already; give another name, or --force to replace it")
    if not has_folder:
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}; make it")


def write_new(path: Path, data: bytes, *, force: bool, mode: int = 0o666) -> None:
    """Make this file, with the rights of `mode` less those that the user's umask takes; `-` is
    standard output. Raises InputError."""
    refuse_to_overwrite(path, force=force)
    if str(path) == STDOUT:
        echo_result(data)
        return
    target = Path(os.path.realpath(path))
    # A name that nobody can lay a link under beforehand, in a folder that others write to as well.
    aside = target.with_name(f".{uuid.uuid4().hex}")
    try:
        try:
            with open(aside, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                os.fchmod(file.fileno(), mode & ~users_umask())
                file.write(data)
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        remedy = "make room there" if error.errno in DISK_FULL else "give another path"
        raise InputError(f"{path} cannot be written: {error.strerror}; {remedy}") from error
