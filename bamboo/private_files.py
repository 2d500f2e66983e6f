"""Makes all files that this program writes private: the keys, state and books of a run.

Rule: a process that begins a run's work calls `keep_private` before it writes anything, and the
processes that it starts inherit the setting. A file that the user names has the rights of the
user's own umask instead (`users_umask`).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NOT_OTHERS = 0o077


def keep_private() -> None:
    """From now on files of this process and of its children are made with 0600 and folders with
    0700 at most, whatever the umask is."""
    global _users
    before = os.umask(_NOT_OTHERS)
    if _users is None:
        _users = before


@contextmanager
def private() -> Iterator[None]:
    """As `keep_private`, until the block ends: for a process that is not ours. The umask is of the
    whole process, so files that its other threads make meanwhile are private too."""
    before = os.umask(_NOT_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def users_umask() -> int:
    """What the umask was before `keep_private`; what it is, where that was never called."""
    if _users is not None:
        return _users
    now = os.umask(_NOT_OTHERS)
    os.umask(now)
    return now


_users: int | None = None
