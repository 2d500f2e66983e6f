"""Ties a foreign program to the life of its parent, then becomes that program.

`… cloud.local.lifeline PARENT_PID PROGRAM ARG…` asks the kernel for SIGKILL when the parent ends
(Linux: PR_SET_PDEATHSIG, which survives exec) and replaces itself by PROGRAM. The parent must start
it from its main thread: the kernel watches the thread that forked.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when `parent` ends; end now if it has already.

    Raises OSError when the kernel refuses. Where there is no prctl it does only the second half,
    and the reaper ends what is left.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent:
        os._exit(1)


def main(argv: list[str]) -> None:
    """Tie, then exec; returns only by an exception."""
    die_with_parent(int(argv[0]))
    os.execv(argv[1], argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
