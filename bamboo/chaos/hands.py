"""What is done to single processes of a run: kill, stop, continue, take away disk space.

Rule: a process id is used only while it belongs to the run's own session, through a handle that
cannot mean another process. `undo_all` leaves no process stopped or limited.
"""

import contextlib
import os
import resource
import signal

from bamboo.sites.here import is_of


class Hands:
    """For one local cloud, whose process id is the number of its session."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._stopped: dict[int, int] = {}
        self._limited: dict[int, tuple[int, int]] = {}

    def stopped(self, pid: int | None) -> bool:
        return pid in self._stopped

    def kill(self, pid: int) -> None:
        """Raises ProcessLookupError when the process is not of this run (any more), as all
        below."""
        pidfd = self._open(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)

    def kill_groups(self, leaders: list[int]) -> None:
        """SIGKILL of whole process groups, all within about a millisecond."""
        for leader in leaders:
            if is_of(leader, self._session):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(leader, signal.SIGKILL)

    def stop(self, pid: int) -> None:
        pidfd = self._open(pid)
        self._stopped[pid] = pidfd
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)

    def go_on(self, pid: int) -> None:
        """Continue it; does nothing where it was not stopped, or is dead."""
        pidfd = self._stopped.pop(pid, None)
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            os.close(pidfd)

    def fill_disk(self, pid: int) -> None:
        """Stop its files from growing. To the process that is a full disk (EFBIG)."""
        os.close(self._open(pid))
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        self._limited.setdefault(pid, before)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))

    def free_disk(self, pid: int) -> None:
        before = self._limited.pop(pid, None)
        if before is not None and is_of(pid, self._session):
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    def undo_all(self) -> None:
        for pid in list(self._stopped):
            self.go_on(pid)
        for pid in list(self._limited):
            self.free_disk(pid)

    def _open(self, pid: int) -> int:
        pidfd = os.pidfd_open(pid)
        if not is_of(pid, self._session):
            os.close(pidfd)
            raise ProcessLookupError(f"process {pid} is not of this run any more")
        return pidfd
