"""An HTTP server on the loopback for callers that authenticate, with limits before and after that.

A caller that has not authenticated keeps a connection for STRANGER_S and may send a head of
HEAD_BYTES at most. It is refused before a body is read, and is the first to be disconnected where
there are too many connections. Rule: everything that is read has a limit and a deadline, and no
text of a caller goes to a log.
"""

import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from math import inf
from socketserver import ThreadingMixIn
from typing import Any

STRANGER_S = 5.0
"""How long a connection without authentication may last."""
IDLE_S = 60.0
"""How long an authenticated connection may wait for its next request, head included."""
EXCHANGE_S = 30.0
"""How long an authenticated caller may take to send a body, or to read an answer."""
HEAD_BYTES = 32 << 10
_REFUSED_BODY_BYTES = 64 << 10
"""How much of a refused body is read and discarded, so that its sender gets to read the answer."""
OVER = 16
"""Connections beyond the limit that may exist while others are being closed."""
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One HTTP answer."""

    status: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status.startswith("200")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. `headers` have lower-case names; repeated ones are joined by a comma.
    `hang_up` closes its connection before there is an answer."""

    method: str
    path: str
    """As it was sent, without the query."""
    query: str
    headers: Mapping[str, str]
    body: bytes = b""
    hang_up: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """How requests are handled. `admit` sees a request without its body, and returns an answer if
    it refuses it. `most_bytes` limits its body, and `answer` sees all of it."""

    admit: Callable[[Request], Answer | None]
    most_bytes: Callable[[Request], int]
    answer: Callable[[Request], Answer]


@dataclass(slots=True, kw_only=True)
class _Line:
    """One connection: whether its caller is authenticated, and when it is closed (monotonic)."""

    until_s: float
    known: bool = False


class LoopbackServer(ThreadingMixIn, HTTPServer):
    """Serves at 127.0.0.1, with a thread for each of at most `most` connections."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, handling: Handling, *, most: int) -> None:
        self.handling = handling
        self._most = most
        self._lines: dict[socket.socket, _Line] = {}
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_LOOK_S,), name="mock-aws", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Bind without the library's look-up of the host's name."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def start(self) -> None:
        """Serve in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Close all connections; waits for the thread."""
        self.shutdown()
        self._thread.join(timeout=5.0)
        self.server_close()
        with self._lock:
            for connection in self._lines:
                _hang_up(connection)

    def known(self, connection: socket.socket, *, until_s: float) -> None:
        """The caller of this connection is authenticated; close it at `until_s`."""
        with self._lock:
            if connection in self._lines:
                self._lines[connection].known = True
                self._lines[connection].until_s = until_s

    # ------------------------------------------------------------ what the library calls

    def process_request(self, request: Any, client_address: Any) -> None:
        """Accept a connection, and close another one where there are too many."""
        with self._lock:
            if len(self._lines) >= self._most:
                self._make_room()
            full = len(self._lines) >= self._most + OVER
            if not full:
                self._lines[request] = _Line(until_s=time.monotonic() + STRANGER_S)
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A connection has ended."""
        with self._lock:
            self._lines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Now and then, close the connections whose time is over."""
        now_s = time.monotonic()
        with self._lock:
            for connection, line in self._lines.items():
                if line.until_s <= now_s:
                    line.until_s = inf  # its thread ends, and removes it from the list
                    _hang_up(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that has gone is no error. Anything else is logged, and answered."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            return
        traceback.print_exc()
        try:
            request.sendall(
                b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n"
                b"Connection: close\r\n\r\n"
            )
        except OSError:
            return

    def _make_room(self) -> None:
        """Close callers without authentication first, then waiting ones; never those being
        answered."""
        waiting = [(line.known, line.until_s, one) for one, line in self._lines.items()]
        going = min((one for one in waiting if one[1] < inf), key=lambda one: one[:2], default=None)
        if going is not None:
            self._lines[going[2]].until_s = inf
            _hang_up(going[2])


class _Handler(BaseHTTPRequestHandler):
    """Reads the requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: LoopbackServer

    def handle_one_request(self) -> None:
        self.close_connection = True
        head = self._head()
        if not head:
            return
        whole, self.rfile = self.rfile, BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        parsed = self.parse_request()
        self.rfile = whole
        if parsed:
            self._serve()

    def _head(self) -> bytes:
        """The next request's lines up to the empty one; nothing for none, or a too long one."""
        head = b""
        while len(head) <= HEAD_BYTES:
            line = self.rfile.readline(HEAD_BYTES + 1)
            head += line
            if not line.endswith(b"\n"):
                return b""
            if line in (b"\r\n", b"\n"):
                return head
        return b""

    def _serve(self) -> None:
        handling = self.server.handling
        path, _, query = self.path.partition("?")
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            key = name.lower()
            headers[key] = f"{headers[key]},{value}" if key in headers else value
        request = Request(
            method=self.command,
            path=path,
            query=query,
            headers=headers,
            hang_up=lambda: _hang_up(self.connection),
        )
        length = _length(headers)
        refused = handling.admit(request)
        if refused is None:
            self.server.known(self.connection, until_s=time.monotonic() + EXCHANGE_S)
            refused = _unreadable(length, most=handling.most_bytes(request))
        if refused is not None:
            self._refuse(refused)
            return
        if headers.get("expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        self.server.known(self.connection, until_s=inf)
        answer = handling.answer(replace(request, body=body))
        self.server.known(self.connection, until_s=time.monotonic() + EXCHANGE_S)
        self._send(answer)
        self.server.known(self.connection, until_s=time.monotonic() + IDLE_S)

    def _refuse(self, answer: Answer) -> None:
        """Answer, and read a little of what is still being sent: with unread bytes the sender would
        lose the answer."""
        self.close_connection = True
        self._send(answer)
        self.connection.shutdown(socket.SHUT_WR)
        left = _REFUSED_BODY_BYTES
        while left > 0 and (part := self.connection.recv(left)):
            left -= len(part)

    def _send(self, answer: Answer) -> None:
        code, _, words = answer.status.partition(" ")
        self.send_response(int(code), words)
        length = str(len(answer.body))
        for name, value in answer.headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in _OURS:
                self.send_header(name, value)
        if int(code) >= 200 and int(code) not in (204, 304):
            self.send_header("Content-Length", length)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def handle_expect_100(self) -> bool:
        """Continue is sent later, to callers that are not refused."""
        return True

    def version_string(self) -> str:
        """The server's name in its answers."""
        return "bamboo"

    def log_message(self, *_: object) -> None:
        """Logs nothing: requests are many, and text of a stranger does not belong in a log."""


_OURS = ("connection", "content-length", "date", "server", "transfer-encoding")
"""Headers that this server writes itself."""


def _length(headers: Mapping[str, str]) -> int:
    """Length of the body in bytes; -1 where it is not given as plain digits."""
    said = headers.get("content-length", "0")
    plain = said.isascii() and said.isdigit() and len(said) <= 18
    return int(said) if plain and "transfer-encoding" not in headers else -1


def _unreadable(length: int, *, most: int) -> Answer | None:
    """The answer to a body that is not to be read."""
    if 0 <= length <= most:
        return None
    status = "411 Length Required" if length < 0 else "413 Content Too Large"
    return Answer(status=status, headers=(), body=b"")


def _hang_up(connection: socket.socket) -> None:
    """Close it, which ends reads and writes there."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has gone
