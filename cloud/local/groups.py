"""The process group that stands for one running instance: its agent leads, its worker joins.

Taking an instance is one SIGKILL to its group. Every method belongs to the host's main thread.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bamboo.ids import InstanceId
from bamboo.new_files import open_to_append

_EMPTY_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """`leader` is the agent, whose process id is the group's number. `pidfd` becomes readable when
    the agent ends."""

    instance: InstanceId
    leader: subprocess.Popen[bytes]
    pidfd: int

    @property
    def group(self) -> int:
        return self.leader.pid

    @property
    def is_lost(self) -> bool:
        """Whether a signal has ended the agent. It is not reaped, so its number stays taken."""
        found = os.waitid(os.P_PID, self.group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found is not None and found.si_code in (os.CLD_KILLED, os.CLD_DUMPED)

    def kill(self) -> None:
        """SIGKILL the whole group, without waiting."""
        signal_group(self.group, signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM the whole group, without waiting."""
        signal_group(self.group, signal.SIGTERM)

    def bury(self) -> int:
        """Kill what is left, reap the agent, and return its exit status (negative: the signal)."""
        self.kill()
        status = self.leader.wait(timeout=_EMPTY_DEADLINE_S)
        os.close(self.pidfd)
        # A fork that was under way may have joined while the dead leader kept the group open. After
        # the reaping no process can join any more.
        end_s = time.monotonic() + _EMPTY_DEADLINE_S
        while signal_group(self.group, signal.SIGKILL) and time.monotonic() < end_s:
            time.sleep(0.005)
        return status


def signal_group(group: int, number: signal.Signals) -> bool:
    """Send a signal to every member of a process group; False when there is none."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # macOS answers so for a group that holds only zombies
    return True


def start_group(
    *,
    instance: InstanceId,
    command: Sequence[str],
    environment: Mapping[str, str],
    lifeline: int,
    log: Path,
) -> InstanceGroup:
    """Start an agent as leader of a group of its own, in the host's session. `lifeline` becomes its
    standard input: a pipe that ends when the host does. Where no log can be opened, it has none."""
    with _opened(log) as output:
        leader = subprocess.Popen(
            list(command),
            stdin=lifeline,
            stdout=output,
            stderr=output,
            env=dict(environment),
            process_group=0,
        )
    return InstanceGroup(instance=instance, leader=leader, pidfd=os.pidfd_open(leader.pid))


def _opened(log: Path) -> BinaryIO:
    try:
        return open_to_append(log)
    except OSError:  # a full disk, which may have room again when the instance needs it
        return Path(os.devnull).open("ab")
