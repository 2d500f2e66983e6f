"""What is said of a run on a full disk: the path, that nothing is lost, what to do.

Rule: checkpoints, store and books are whole at every moment, so whatever a full disk stopped goes
on from them once there is room.
"""

import os
from pathlib import Path

from bamboo.core.phrases import size
from bamboo.errors import BooksUnwritable, InputError
from cli.runs import RunFolder, is_detached
from cloud.local.room import ROOM_BYTES, free_bytes, full_disk


def refuse_without_room(home: Path, *, need_bytes: int = 0, variable: str = "BAMBOO_HOME") -> None:
    """Before anything is started; `variable` names another folder than `home`. Raises InputError
    where nothing can be written, its disk is full, or has less than `need_bytes` besides."""
    there = next(path for path in (home, *home.parents) if path.exists())
    if wrong := unwritable(there):
        raise InputError(f"{wrong}; set {variable} to a folder that you may write")
    otherwise = f"or set {variable} to a folder on another disk"
    if full := full_disk(there):
        raise InputError(f"{full}, {otherwise}")
    if (free := free_bytes(there)) < ROOM_BYTES + need_bytes:
        raise InputError(
            f"the disk of {there} has {size(free)} left, and what the run keeps there needs "
            f"{size(ROOM_BYTES + need_bytes)}; make room there, {otherwise}"
        )


def unwritable(folder: Path) -> str:
    """ "" or, where this user can write nothing into it, a sentence that says so."""
    if os.access(folder, os.W_OK | os.X_OK):
        return ""
    return f"nothing can be written into {folder}: its disk is read-only, or it is another user's"


def refuse_to_settle(folder: RunFolder) -> None:
    """Before a run that is over is read for its receipt. Raises BooksUnwritable."""
    if full := full_disk(folder.path):
        raise BooksUnwritable(
            f"run {folder.id} is over, but its receipt cannot be written: {full}, then "
            f"`{_remedy(folder)}`; nothing of it is lost"
        )


def unsettled(folder: RunFolder, sentence: str, error: Exception) -> BooksUnwritable:
    """For a run that ended with `sentence`, and whose receipt or books could not be written."""
    remedy = "" if isinstance(error, InputError) else f"make room in {folder.path}, "
    return BooksUnwritable(
        f"run {folder.id}: {sentence}; its receipt cannot be written: {error}; nothing of its "
        f"checkpoints is lost: {remedy}then `{_remedy(folder)}`"
    )


def with_disk(folder: RunFolder, sentence: str) -> str:
    """What ended a run, with the cause that most others follow from, if it is so."""
    full = full_disk(folder.path)
    return f"{sentence}; {full}, then `bamboo resume {folder.id}`" if full else sentence


def _remedy(folder: RunFolder) -> str:
    return f"bamboo {'attach' if is_detached(folder) else 'resume'} {folder.id}"
