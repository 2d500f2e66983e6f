"""The process between a caller and its embedded store: it lets the store die with the caller.

Rule: standard library only, one thread, run as a script in isolated mode
(`python -I -S embedded_guard.py PARENT_PID COMMAND...`). It prints the store's pid as its first
line, ends the store when it is asked to (SIGTERM, SIGINT) or when PARENT_PID is no longer its
parent, and ends when the store ends. On Linux the kernel kills the store if this process is killed.
"""

import ctypes
import os
import select
import signal
import sys
from types import FrameType

LOOK_S = 0.5
"""How often the parent is looked at; a signal is noticed at once."""
GRACE_S = 3.0
"""How long the store may take for an orderly end before it is killed."""
_PR_SET_PDEATHSIG = 1


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """Signals arrive through the wake-up pipe; the handler only keeps the default away."""


def _start(command: list[str]) -> int:
    guard = os.getpid()
    child = os.fork()
    if child:
        return child
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The guard may have died before the line above took effect.
    if os.getppid() == guard:
        os.execv(command[0], command)
    os._exit(127)


def _end(child: int, wakeups: int) -> None:
    os.kill(child, signal.SIGTERM)
    for _ in range(int(GRACE_S / LOOK_S)):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        if select.select([wakeups], [], [], LOOK_S)[0]:
            os.read(wakeups, 64)
    if not os.waitpid(child, os.WNOHANG)[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main(arguments: list[str]) -> int:
    """Start the command, guard it, return its exit status (0 after an orderly end)."""
    parent, command = int(arguments[0]), arguments[1:]
    wakeups, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, _ignore)
    child = _start(command)
    os.write(sys.stdout.fileno(), f"{child}\n".encode())
    while os.getppid() == parent:
        asked = b""
        if select.select([wakeups], [], [], LOOK_S)[0]:
            asked = os.read(wakeups, 64)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) & 0xFF
        if any(number in (signal.SIGTERM, signal.SIGINT) for number in asked):
            break
    _end(child, wakeups)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
