"""The agent's end of the connection to its worker: a unix socket on which the worker reports
progress.

The worker connects once and writes one JSON object per line: the payload of the node's lease. Each
is answered with one byte, whether the store takes what the node writes, because a worker may write
nothing for long. When the connection ends, the worker knows that its agent is dead.
"""

import contextlib
import json
import selectors
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from bamboo.local_sockets import accept_own, listen_privately
from bamboo.ports import REFUSED, TAKEN

FIRST_PAYLOAD = json.dumps({"progress": 0, "step": 0, "ops": {}, "tensor_bytes": 0})
_LINE_LIMIT_BYTES = 65536
_MOST_CONNECTIONS = 8
"""A worker has one connection."""
_LOOK_S = 0.5


class WorkerLink:
    """Listens at `path` and keeps the newest payload; `taken` tells whether the store takes the
    node's beats. `run` is a thread's body."""

    def __init__(self, path: Path, *, taken: Callable[[], bool]) -> None:
        self.path = path
        self._taken = taken
        self._payload = FIRST_PAYLOAD
        self._received: dict[socket.socket, bytes] = {}
        path.unlink(missing_ok=True)
        self._listener = listen_privately(path, backlog=4)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def payload(self) -> str:
        """The newest whole line of the worker, or a payload of zeros before the first line."""
        return self._payload

    def run(self, stop: threading.Event) -> None:
        """Read until `stop`, then close the connections."""
        while not stop.is_set():
            for key, _ in self._selector.select(_LOOK_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)
        self._selector.close()
        for connection in (*self._received, self._listener):
            connection.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            connection = accept_own(self._listener)
        except BlockingIOError:
            return
        if connection is None:
            return
        if len(self._received) >= _MOST_CONNECTIONS:
            connection.close()
            return
        connection.setblocking(False)
        self._received[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            part = connection.recv(_LINE_LIMIT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        received = self._received[connection] + part
        if not part or len(received) > 2 * _LINE_LIMIT_BYTES:
            self._selector.unregister(connection)
            del self._received[connection]
            connection.close()
            return
        *lines, self._received[connection] = received.split(b"\n")
        for line in reversed(lines):
            if _is_payload(line):
                self._payload = line.decode()
                break
        if lines:
            with contextlib.suppress(OSError):  # it is gone; the next look finds that out
                connection.send(TAKEN if self._taken() else REFUSED)


def _is_payload(line: bytes) -> bool:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(raw, dict) and isinstance(raw.get("progress"), int)
