"""Processes of other systems: what is said where they are missing, and that none outlives us."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import processes
from testbed.waiting import wait_until

ROOT = Path(__file__).parents[2]
HOLD = (
    "import os, sys, time, pathlib\n"
    "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
    "time.sleep(600)\n"
)
HARNESS = (
    "import sys, time, pathlib\n"
    "from benchmarks.peers.processes import running\n"
    "with running([sys.executable, '-c', sys.argv[1], sys.argv[2]], pathlib.Path(sys.argv[3])):\n"
    "    time.sleep(600)\n"
)


def test_what_is_missing_is_said_with_the_command_that_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "BIN", tmp_path / ".venv-peers" / "bin")
    assert not processes.at_hand()
    said = processes.missing()
    assert ".venv-peers" in said
    assert (ROOT / processes.MAKE_IT).exists()
    assert processes.MAKE_IT in said


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.timeout(60)
def test_a_process_ends_with_the_block_and_with_a_harness_that_is_killed(tmp_path: Path) -> None:
    pid_file, log = tmp_path / "pid", tmp_path / "log"
    command = [sys.executable, "-c", HOLD, str(pid_file)]

    def started() -> int:
        wait_until(lambda: pid_file.exists() and pid_file.read_text(), what="its id", timeout_s=20)
        return int(pid_file.read_text())

    with processes.running(command, log):
        pid = started()
    wait_until(lambda: not alive(pid), what="its end", timeout_s=20)
    pid_file.unlink()
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, HOLD, str(pid_file), str(log)], cwd=ROOT
    )
    pid = started()
    harness.kill()
    harness.wait(20)
    wait_until(lambda: not alive(pid), what="its end", timeout_s=20)
