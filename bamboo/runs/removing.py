"""What a run takes on the disk of this home, and deleting it.

Rule: only a run that has ended is removed, by a process that holds its launcher's lock meanwhile.
The lock and the file that makes a folder a run are deleted last, so no launcher takes over a
half-deleted run, and the same command finishes an interrupted removal. No link is followed.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bamboo.errors import InputError
from bamboo.kept_weights import INIT_FOLDER
from bamboo.runs import lock
from bamboo.runs.run_folder import RunFolder, checks_of, job_of
from bamboo.runs.run_status import store_is_gone
from bamboo.user_code.bundle import CODE_FOLDER
from bamboo.user_code.wheels import WHEELS_FOLDER

BY_NAME = (
    *("final", "checkpoints", INIT_FOLDER, "store", "logs", "events", CODE_FOLDER, WHEELS_FOLDER),
    "trace",
)
PARTS = {name: name for name in BY_NAME} | {"parts": "earlier parts"}
"""Files and folders of a run that are counted, and the names of their bytes; everything else is
`books`."""
BOOKS = "books"


def disk_use(folder: RunFolder) -> dict[str, int]:
    """Bytes on the disk by part of the run, the largest first; empty parts are left out. A file
    that disappears meanwhile is not counted."""
    found: dict[str, int] = {}
    for path, held_bytes in _held(folder.path):
        part = PARTS.get(path.relative_to(folder.path).parts[0], BOOKS)
        found[part] = found.get(part, 0) + held_bytes
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _held(folder: Path) -> Iterator[tuple[Path, int]]:
    """Every file below a folder, with its bytes on the disk."""
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where) / name
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            yield path, status.st_blocks * 512


def why_not(folder: RunFolder) -> str:
    """Why a run cannot be removed now, with the remedy; "" where it can."""
    if folder.path.is_symlink():
        return f"{folder.path} is a link; remove the link, or the folder that it leads to"
    if not lock.is_free(folder):
        return f"it is going on; `bamboo stop {folder.id}` ends it"
    for check in checks_of(folder):
        if not lock.is_free(check):
            return f"its check {check.id} goes on; wait for it, or interrupt it"
    if folder.receipt.exists():
        return ""
    if not store_is_gone(folder):
        return f"it has a store and no receipt; `bamboo attach {folder.id}` gives it a launcher"
    try:
        provider = job_of(folder).cloud.provider
    except InputError:  # of a damaged run only the launcher could still be running
        return ""
    if provider != "local":
        return f"its instances may run; `bamboo stop {folder.id}` ends them and writes its receipt"
    return ""


def remove(folder: RunFolder) -> None:
    """Delete all of an ended run. May be called again after an interrupted removal. Raises
    InputError for a run that cannot be removed, or where the disk refuses."""
    if why := why_not(folder):
        raise InputError(f"run {folder.id} is not removed: {why}")
    held = lock.take(folder)
    if held is None:
        raise InputError(f"run {folder.id} is not removed: another command is resuming it")
    last = (folder.path / lock.NAME, folder.resolved)
    try:
        for path in list(folder.path.iterdir()):
            if path in last:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        for path in last:
            path.unlink()
        folder.path.rmdir()
    except OSError as error:
        raise InputError(
            f"run {folder.id} is not removed whole: {error.filename}: {error.strerror}; "
            f"`bamboo rm {folder.id}` goes on with it"
        ) from error
    finally:
        held.close()


def too_many(folders: Sequence[RunFolder], keep: int) -> list[RunFolder]:
    """The runs that have ended, oldest first, without the newest `keep` of these."""
    ended = [folder for folder in folders if folder.receipt.exists() and not why_not(folder)]
    return ended[: max(0, len(ended) - keep)]


def in_bucket(folder: RunFolder) -> str:
    """Where a run has files outside its folder; "" where it has none, or that is unknown."""
    try:
        job = job_of(folder)
    except InputError:
        return ""
    if job.cloud.provider != "local":
        return f"s3://{job.cloud.bucket}/runs/{folder.id}/"
    return job.checkpoint.url


def total(parts: Mapping[str, int]) -> int:
    """Bytes of all parts."""
    return sum(parts.values())
