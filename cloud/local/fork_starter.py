"""A WorkerStarter that forks workers from the local cloud's zygote into the agent's own group."""

import json
import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bamboo.errors import BambooError
from cloud.local.zygote import Request

START_DEADLINE_S = 20.0
TOLD_DEADLINE_S = 20.0
"""A worker's status may take so long after its end. From a stopped zygote it never comes."""
_LOST = 255


class ForkedWorker:
    """A worker that the zygote forked; its exit status comes over the request's connection."""

    def __init__(self, connection: socket.socket, pid: int, pidfd: int | None, rest: bytes) -> None:
        self._connection = connection
        self._pid = pid
        self._pidfd = pidfd
        self._received = rest
        self._status: int | None = None
        self._server_went = False

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        """None while it runs, otherwise its exit status (negative: the signal; 255: unknown,
        because the zygote ended first)."""
        if self._status is not None:
            return self._status
        try:
            part = self._connection.recv(4096)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        self._received += part
        self._server_went = not part
        if self._received.endswith(b"\n"):
            self._status = int(json.loads(self._received)["exit"])
        elif not part and not self._alive():
            self._status = _LOST
        return self._status

    def wait(self) -> int:
        """Its exit status as in `poll`, once it has ended; 255 where the zygote does not report
        it."""
        while (status := self.poll()) is None:
            tells = [] if self._server_went else [self._connection.fileno()]
            if self._pidfd is not None and self._alive():
                _readable([*tells, self._pidfd], None)
            elif tells and not _readable(tells, TOLD_DEADLINE_S):
                self._status = _LOST
        return status

    def kill(self) -> None:
        """SIGKILL; safe when it is gone already, even when another process has its number."""
        if self._pidfd is not None and self._status is None:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                return

    def close(self) -> None:
        """Close the connection; the worker is not watched any more."""
        self._connection.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _alive(self) -> bool:
        return self._pidfd is not None and not _readable([self._pidfd], 0.0)


class ForkStarter:
    """Asks the zygote behind `socket_path` for one fork per worker. The output goes to `log`."""

    def __init__(self, *, socket_path: Path, entry: str, log: Path) -> None:
        self._socket_path = socket_path
        self._entry = entry
        self._log = log

    def start(self, *, config: Mapping[str, str]) -> ForkedWorker:
        """Fork a worker into the calling process's group. Raises BambooError when the zygote does
        not answer within 20 s or refuses."""
        request = Request(entry=self._entry, config=config, group=os.getpgid(0), log=str(self._log))
        return fork(self._socket_path, request)


def fork(socket_path: Path, request: Request, streams: Sequence[int] = ()) -> ForkedWorker:
    """The fork that the zygote makes for this request. `streams` are its input, output and errors,
    where the request names no log. Raises BambooError when the zygote does not answer within 20 s
    or refuses."""
    connection, answer, rest = _asked(socket_path, request, streams, what="start a worker")
    pid = int(answer["pid"])
    connection.setblocking(False)
    return ForkedWorker(connection, pid, _open_pidfd(pid), rest)


def log_to(socket_path: Path, log: Path) -> None:
    """Send the zygote's own output there from now on. Raises BambooError as `fork` does."""
    request = Request(entry="", config={}, group=0, log=str(log))
    _asked(socket_path, request, (), what="open its log")[0].close()


def _asked(
    socket_path: Path, request: Request, streams: Sequence[int], *, what: str
) -> tuple[socket.socket, dict[str, Any], bytes]:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(START_DEADLINE_S)
    try:
        connection.connect(str(socket_path))
        line = request.line()
        sent = socket.send_fds(connection, [line], streams) if streams else 0
        if sent < len(line):  # otherwise it may have answered and gone
            connection.sendall(line[sent:])
        received, rest = _first_line(connection)
        answer = json.loads(received)
        if "error" in answer:
            raise ValueError(answer["error"])
    except (OSError, ValueError) as error:
        connection.close()
        raise BambooError(
            f"the fork server at {socket_path} did not {what}: {error!r}; see logs/zygote.log in "
            "the run's directory, if there is one yet"
        ) from error
    return connection, answer, rest


def _readable(descriptors: Sequence[int], timeout_s: float | None) -> bool:
    """Whether one of them has something to read, or its other side has ended, within that time
    (None: without a limit). Any descriptor number works, while `select` takes only those below
    1024."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else 1e3 * timeout_s))


def _first_line(connection: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while b"\n" not in received:
        part = connection.recv(4096)
        if not part:
            raise ValueError(f"it hung up after {received!r}")
        received += part
    line, _, rest = received.partition(b"\n")
    return line, rest


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None  # it ended at once; its status is on the way
