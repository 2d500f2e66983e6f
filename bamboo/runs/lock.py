"""The lock that makes a process the launcher of a run: at most one process holds it.

It is a lock of the operating system on a file in the run's folder, held while the descriptor is
open in any process. It is released however a launcher ends, and nothing has to be cleaned up. It
can be handed to a child, so that the run is never without a holder.
"""

import fcntl
import os
import time

from bamboo.errors import InputError
from bamboo.runs.run_folder import RunFolder

NAME = "launcher.lock"
LAST_WORDS_S = 5.0
"""A launcher may exist for so long after its run's receipt."""


class Lock:
    """An open descriptor that holds the lock."""

    def __init__(self, descriptor: int) -> None:
        """A lock that was taken here, or inherited."""
        os.set_inheritable(descriptor, False)
        self.descriptor = descriptor

    def close(self) -> None:
        """Release it, unless a child holds it too; safe to call again."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def take(folder: RunFolder) -> Lock | None:
    """Become the launcher of this run; None when another process is. Raises InputError where the
    folder is not writable."""
    return _locked(folder, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)


def is_free(folder: RunFolder) -> bool:
    """Whether the run has no launcher now. Raises InputError where that cannot be read."""
    if not (folder.path / NAME).exists():
        return True  # a mere question creates no file and needs no right to write
    lock = _locked(folder, os.O_RDONLY, fcntl.LOCK_SH)
    if lock is not None:
        lock.close()
    return lock is not None


def refuse_while_led(folder: RunFolder) -> None:
    """Raise InputError while the run has a launcher, for actions that need a finished run. A
    launcher that has written the receipt only has to print its last lines, and is waited for."""
    end_s = time.monotonic() + (LAST_WORDS_S if folder.receipt.exists() else 0.0)
    while not is_free(folder):
        if time.monotonic() < end_s:
            time.sleep(0.02)
            continue
        raise InputError(
            f"run {folder.id} is going on; `bamboo attach {folder.id}` shows it, "
            f"`bamboo stop {folder.id}` ends it"
        )


def _locked(folder: RunFolder, access: int, kind: int) -> Lock | None:
    path = folder.path / NAME
    try:
        descriptor = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except FileNotFoundError as error:
        raise InputError(f"run {folder.id} is gone: it has just been removed") from error
    except OSError as error:
        whose = "it is for who may write there" if access & os.O_RDWR else "ask as its user"
        raise InputError(f"{path} cannot be opened: {error.strerror}; {whose}") from error
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return Lock(descriptor)
