"""Writes a file or a folder that a user asked for: whole or not at all, and never over another one
unless forced.

Rule: it is written under another name and then renamed, so a full disk leaves what was there,
and no link is followed. Every error of the disk is one line with the path and what to do.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bamboo.errors import InputError
from bamboo.jsonl import DISK_FULL
from bamboo.new_files import whole_file
from bamboo.private_files import users_umask

_NO_SECOND_NAMES = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of a file system that allows only one name for a file."""


def refuse_to_overwrite(path: Path, *, force: bool) -> None:
    """Check this before the work whose result goes to `path`. Raises InputError."""
    try:
        if "\0" in str(path):  # the system would take it for the end of the name
            raise ValueError("a name has no zero byte")
        leads_to = os.readlink(path) if path.is_symlink() else ""
        there = path.exists()
        is_file = path.is_file()
        has_folder = path.parent.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or a folder without access
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be written: {why}; give another path") from error
    if leads_to:
        raise InputError(
            f"{path} is a link to {leads_to}, which is not followed; give the name of the file "
            "itself (- is standard output), or take the link away"
        )
    if there and not is_file:
        raise InputError(f"{path} is no file that could be written; give the name of a new one")
    if there and not force:
        raise InputError(f"{path} is there already; give another name, or --force to replace it")
    if not has_folder:
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}; make it")


def write_new(path: Path, data: bytes, *, force: bool, mode: int = 0o666) -> None:
    """Make this file, with the permissions `mode` less the user's umask. Raises InputError."""
    refuse_to_overwrite(path, force=force)
    try:
        try:
            _write(path, data, replace=force, mode=mode)
        except FileExistsError:  # it was created in between
            refuse_to_overwrite(path, force=force)
            raise
        except OSError as error:
            if force or error.errno not in _NO_SECOND_NAMES:
                raise
            _write(path, data, replace=True, mode=mode)
    except OSError as error:
        remedy = "make room there" if error.errno in DISK_FULL else "give another path"
        raise InputError(f"{path} cannot be written: {error.strerror}; {remedy}") from error


def _write(path: Path, data: bytes, *, replace: bool, mode: int) -> None:
    with whole_file(path, mode=mode, replace=replace) as file:
        os.fchmod(file.fileno(), mode & ~users_umask())
        file.write(data)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which is `path` when the block ends without an error; otherwise
    nothing is left of it. Its files get the permissions that the user's umask leaves. Raises
    InputError for a `path` where something is, unless that is an empty folder."""
    _refuse_to_fill(path)
    path = path.absolute()
    aside = path.parent / f".{path.name[:100]}-{uuid.uuid4().hex}"
    try:
        aside.mkdir()
        try:
            yield aside
            _open_to_others(aside)
            os.rename(aside, path)  # in place of an empty folder at most
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        remedy = "make room there" if error.errno in DISK_FULL else "give another path"
        raise InputError(f"{path} cannot be written: {error.strerror}; {remedy}") from error


def _refuse_to_fill(path: Path) -> None:
    try:
        if "\0" in str(path):
            raise ValueError("a name has no zero byte")
        is_link = path.is_symlink()
        is_folder = path.is_dir()
        there = path.exists()
        entries = os.listdir(path) if is_folder else []
        has_parent = path.absolute().parent.is_dir()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be written: {why}; give another path") from error
    if is_link:
        raise InputError(f"{path} is a link, which is not followed; give the folder itself")
    if entries:
        raise InputError(f"{path} is there already, with {entries[0]} in it; give another folder")
    if there and not is_folder:
        raise InputError(f"{path} is there already, and no folder; give another name")
    if not has_parent:
        folder = path.absolute().parent
        raise InputError(f"{path} cannot be written: there is no folder {folder}; make it")


def _open_to_others(folder: Path) -> None:
    """All that is below, as the user's own programs would have made it, and on the disk."""
    away = users_umask()
    for where, _, names in os.walk(folder):
        os.chmod(where, 0o777 & ~away)
        for name in names:
            with open(os.path.join(where, name), "rb") as file:
                os.fchmod(file.fileno(), 0o666 & ~away)
                os.fsync(file.fileno())
