"""The processes of one session, found in /proc.

The local cloud runs in a session of its own and everything it starts stays in it, whatever process
group it joins. So the kernel knows everything that belongs to this run, and no list of process ids
has to be kept up to date.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

_PROC = Path("/proc")


def members(session: int) -> tuple[int, ...]:
    """Process ids of all living processes of `session`, in ascending order.

    Zombies are left out: they run nothing and only wait for their parent. A session number is not
    reused while any member lives.
    """
    here = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return tuple(sorted(pid for pid in here if is_member(pid, session)))


def is_member(pid: int, session: int) -> bool:
    """Whether process `pid` lives and belongs to `session`; a zombie does not live."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    # The command's name is in parentheses and may contain spaces or parentheses itself.
    fields = stat[stat.rindex(")") + 2 :].split()
    state, session_id = fields[0], int(fields[3])
    return session_id == session and state not in ("Z", "X")


def kill_members(session: int, *, spare: int, deadline_s: float) -> tuple[int, ...]:
    """SIGKILL every member of `session` but `spare` until none is left or `deadline_s` has passed.

    A member may fork between the look and the kill, hence the loop. Returns the members that are
    left: empty when all are gone.
    """
    end_s = time.monotonic() + deadline_s
    while True:
        left = tuple(pid for pid in members(session) if pid != spare)
        if not left or time.monotonic() > end_s:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
