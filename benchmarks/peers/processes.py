"""Processes of the peers' environment, started and ended by the harness on our side.

Rule: every process has a deadline to start, is killed by the id that it was started with, and does
not outlive the `with` block that it was started in.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-peers" / "bin"
MAKE_IT = "benchmarks/peers/setup.sh"
DEADLINE_S = 120.0
TO_END_S = 60.0
"""How long a process may take to end on request."""
POLL_S = 0.02
_PR_SET_PDEATHSIG = 1
"""A constant of prctl(2), Linux."""


def at_hand() -> bool:
    """Whether the peers' environment was installed."""
    return (BIN.parent / "made").exists()


def missing() -> str:
    """The message where it was not."""
    return f"the peers are not installed in {BIN.parent.name}; make it with `{MAKE_IT}`"


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a peer's process: it can import our layers, and its sockets stay on this
    machine."""
    known = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    here = {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "PATH": f"{BIN}:{known['PATH']}"}
    return {**known, **here, "OMP_NUM_THREADS": "1", **more}


WHILE_HEARD = '"$@" & child=$!; cat >/dev/null; kill -9 $child'
"""A shell script that runs a command and ends it with the process that holds our end of its
standard input."""


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, however it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


@contextlib.contextmanager
def running(command: list[str], log: Path, **more: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process and all of its group, until the block ends, or we do."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["sh", "-c", WHILE_HEARD, "sh", *command],
            cwd=ROOT,
            env=surroundings(**more),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            process_group=0,
        )
    try:
        yield process
    finally:
        end(process)


def wait_for(there: Callable[[], bool], complaint: Callable[[], str], timeout_s: float) -> None:
    """Wait until it is there. Raises RuntimeError with the complaint when it does not come."""
    give_up_s = time.monotonic() + timeout_s
    while not there():
        if time.monotonic() > give_up_s:
            raise RuntimeError(complaint())
        time.sleep(POLL_S)


def end_in_order(process: "subprocess.Popen[bytes]") -> None:
    """Request the end of a process, which ends what it started; kill it when it does not end."""
    process.terminate()
    try:
        process.wait(TO_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(DEADLINE_S)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process with its group, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(DEADLINE_S)
    if process.stdin is not None:
        process.stdin.close()


def free_port() -> int:
    """A port of this machine that is unused now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Forks:
    """A fork server (`benchmarks.peers.forks`) with one peer's module imported."""

    def __init__(self, module: str, directory: Path) -> None:
        self._directory = directory
        with (directory / "forks.log").open("ab") as errors:
            self._server = subprocess.Popen(
                [str(BIN / "python"), "-m", "benchmarks.peers.forks", module],
                cwd=ROOT,
                env=surroundings(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
                text=True,
            )
        self._line()

    def start(self, name: str, config: Mapping[str, Any]) -> int:
        """Start a new process at once; its id."""
        assert self._server.stdin is not None
        log = str(self._directory / f"{name}.log")
        self._server.stdin.write(json.dumps({**config, "log": log}) + "\n")
        self._server.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self._server.stdout is not None
        readable, _, _ = select.select([self._server.stdout], [], [], DEADLINE_S)
        line: str = self._server.stdout.readline() if readable else ""
        if not line:
            said = (self._directory / "forks.log").read_text()[-800:]
            raise RuntimeError(f"the peers' fork server says nothing: {said}")
        return line.strip()

    def close(self) -> None:
        """End the server, which kills all of its forks."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(DEADLINE_S)
        self._server.stdout.close()
