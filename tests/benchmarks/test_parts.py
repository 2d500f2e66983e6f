"""A part of the benchmarks is ended with all that it started."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.__main__ import end, in_session
from testbed.waiting import wait_until

pytestmark = pytest.mark.timeout(60)

PART = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print(child.pid, flush=True)
time.sleep(600 if sys.argv[1] == "stays" else 0)
"""
ORPHAN = """
import subprocess, sys, time
command = "from benchmarks.peers.processes import die_with_parent; import time; die_with_parent(); "
command += "print('ready', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", command], process_group=0, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def started(*command: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A process in a session of its own, and the child that it names."""
    process = subprocess.Popen(
        [sys.executable, "-c", *command],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout:
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            for pid in in_session(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait(10)


def is_there(pid: int) -> bool:
    """Whether it runs: one that has ended and that nobody waited for does not."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("leader", ["stays", "ends"])
def test_a_part_takes_all_of_its_session_along(leader: str) -> None:
    with started(PART, leader) as (process, child):
        if leader == "ends":
            process.wait(10)
        assert is_there(child)
        end(process)
        assert process.returncode is not None
        wait_until(lambda: not is_there(child), what="the child's end")


def test_a_process_that_is_to_die_with_its_parent_does() -> None:
    with started(ORPHAN) as (process, child):
        assert is_there(child)
        process.kill()
        wait_until(lambda: not is_there(child), what="the child's end")
