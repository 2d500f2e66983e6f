"""Real worker processes for tests: forks of a server that has torch imported already.

Each worker gets a process group of its own, so that a test can kill it by pid at any instant. The
server is the local cloud's; it ends with this process, and workers end with it too, since they
hang on the agent socket of the cluster that started them.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cloud.local.services import wait_for_zygote
from cloud.local.zygote import Request

ROOT = Path(__file__).parents[1]
MODULE = "testbed.entry"
COMPILER = "torch._dynamo"
"""Each worker whose layers are computed again loads it, in two seconds."""
ENTRY = f"{MODULE}:main"
DEADLINE_S = 20.0


class Process:
    """A forked worker. Signals go through a handle, so never to another process of that number."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self.pid = int(self._line()["pid"])
        try:
            self._handle: int | None = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._handle = None  # it ended at once; its status is on the way

    def _line(self) -> dict[str, int]:
        while b"\n" not in self._received:
            part = self._connection.recv(4096)
            assert part, f"the fork server hung up after {self._received!r}"
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        found: dict[str, int] = json.loads(line)
        return found

    def signal(self, number: int) -> bool:
        """Send a signal; False when the process has ended already."""
        if self._handle is None:
            return False
        try:
            signal.pidfd_send_signal(self._handle, number)
        except ProcessLookupError:
            return False
        return True

    def status(self, timeout_s: float = 0.0) -> int | None:
        """Its exit status (negative: the signal that ended it), None if it still runs then."""
        if b"\n" not in self._received:
            readable, _, _ = select.select([self._connection], [], [], timeout_s)
            if not readable:
                return None
        status = self._line()["exit"]
        self._received = json.dumps({"exit": status}).encode() + b"\n"
        return status

    def close(self) -> None:
        """End the process if it still runs, wait for it, and close the handles."""
        self.signal(signal.SIGKILL)
        assert self.status(DEADLINE_S) is not None, f"process {self.pid} outlives SIGKILL"
        self._connection.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class Forker:
    """A fork server; `close` ends it. It imports `modules` in advance, as the local cloud's does;
    `environment` is added to its own, and so to that of every worker."""

    def __init__(self, *modules: str, environment: Mapping[str, str] | None = None) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="bf-")
        directory = Path(self._directory.name)
        self._socket, log = directory / "zygote", directory / "log"
        with log.open("ab") as errors:
            self._server = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "cloud.local.zygote",
                    str(self._socket),
                    *(modules or (MODULE,)),
                ],
                cwd=ROOT,
                env=os.environ | dict(environment or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            )
        wait_for_zygote(self._server, log=log)

    def start(self, config: Mapping[str, str], log: Path, entry: str = ENTRY) -> Process:
        """Fork one worker (or another `package.module:function` of a config) into a process group
        of its own."""
        request = Request(entry=entry, config=config, group=0, log=str(log))
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(DEADLINE_S)
        connection.connect(str(self._socket))
        connection.sendall(request.line())
        return Process(connection)

    def close(self) -> None:
        """End the server and wait for it."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        try:
            self._server.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(timeout=DEADLINE_S)
        self._directory.cleanup()


_SHARED: dict[tuple[str, ...], Forker] = {}


def shared_forker(*also: str) -> Forker:
    """The fork server of this process that has imported these as well, started when first asked
    for."""
    if also not in _SHARED:
        _SHARED[also] = Forker(MODULE, COMPILER, *also)
    return _SHARED[also]


def close_shared_forker() -> None:
    """End the shared fork servers, if there are any."""
    while _SHARED:
        _SHARED.popitem()[1].close()
