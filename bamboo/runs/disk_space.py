"""What a person is told about a run on a full disk: the path, that nothing is lost, what to do.

Rule: checkpoints, store and books are whole at every moment, so whatever a full disk stopped
continues from them once there is room.
"""

import os
from pathlib import Path

from bamboo.disk import ROOM_BYTES, free_bytes, full_disk
from bamboo.errors import BooksUnwritable, InputError
from bamboo.quantities import size
from bamboo.runs.run_folder import RunFolder, is_detached


def refuse_without_room(home: Path, *, need_bytes: int = 0, variable: str = "BAMBOO_HOME") -> None:
    """Check the disk before anything is started. `variable` is the setting that names another
    folder than `home`. Raises InputError where nothing can be written, or the disk is full or has
    less than `need_bytes` free."""
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
    """Why this user cannot write into the folder, as a sentence; "" where it can."""
    if not folder.is_dir():
        return f"nothing can be written into {folder}: it is no folder"
    if os.access(folder, os.W_OK | os.X_OK):
        return ""
    return f"nothing can be written into {folder}: its disk is read-only, or it is another user's"


def refuse_to_settle(folder: RunFolder) -> None:
    """Check the disk before the receipt of a finished run is written. Raises BooksUnwritable."""
    if full := full_disk(folder.path):
        raise BooksUnwritable(
            f"run {folder.id} is over, but its receipt cannot be written: {full}, then "
            f"`{_remedy(folder)}`; nothing of it is lost"
        )


def unsettled(folder: RunFolder, sentence: str, error: Exception) -> BooksUnwritable:
    """The error for a run that ended with `sentence`, and whose receipt or books were not
    written."""
    remedy = "" if isinstance(error, InputError) else f"make room in {folder.path}, "
    return BooksUnwritable(
        f"run {folder.id}: {sentence}; its receipt cannot be written: {error}; nothing of its "
        f"checkpoints is lost: {remedy}then `{_remedy(folder)}`"
    )


def with_disk(folder: RunFolder, sentence: str) -> str:
    """The sentence that says what ended a run, with the full disk as the cause if it is full."""
    full = full_disk(folder.path)
    return f"{sentence}; {full}, then `bamboo resume {folder.id}`" if full else sentence


def _remedy(folder: RunFolder) -> str:
    return f"bamboo {'attach' if is_detached(folder) else 'resume'} {folder.id}"
