"""Servers that answer and refuse: a real one that is made to, and one that says what it is told."""

import shutil
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis

from testbed.store_server import StoreServer
from testbed.waiting import wait_until

Way = Callable[[StoreServer, "redis.Redis[Any]"], Any]
"""Has a server refuse as long as the `with` block lasts."""


def setting(**settings: object) -> Way:
    """By settings, which are taken back."""

    @contextmanager
    def way(server: StoreServer, admin: Any) -> Iterator[None]:
        names = {name.replace("_", "-"): value for name, value in settings.items()}
        before = {name: admin.config_get(name)[name] for name in names}
        for name, value in names.items():
            admin.config_set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                admin.config_set(name, value)

    return way


@contextmanager
def replica(server: StoreServer, admin: Any) -> Iterator[None]:
    """Of a primary that is not there: it is read as ever."""
    admin.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        yield
    finally:
        admin.execute_command("REPLICAOF", "NO", "ONE")


@contextmanager
def silent_replica(server: StoreServer, admin: Any) -> Iterator[None]:
    with setting(replica_serve_stale_data="no")(server, admin), replica(server, admin):
        yield


@contextmanager
def busy(server: StoreServer, admin: Any) -> Iterator[None]:
    """With a script that does not end."""

    def loop() -> None:
        with redis.Redis.from_url(server.url) as other, suppress(redis.ResponseError):
            other.eval("while true do end", 0)  # until it is ended

    def is_busy() -> bool:
        try:
            admin.ping()
        except redis.ResponseError:
            return True
        return False

    with setting(busy_reply_threshold=1)(server, admin):
        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            wait_until(is_busy, what="it is busy")
            yield
        finally:
            admin.execute_command("SCRIPT", "KILL")
            thread.join(10.0)


@contextmanager
def no_disk(server: StoreServer, admin: Any) -> Iterator[None]:
    """Its folder is gone, so that it cannot be saved."""
    folder = admin.config_get("dir")["dir"]
    with setting(save="3600 1")(server, admin):
        shutil.rmtree(folder)
        admin.bgsave()

        def failed() -> bool:
            return bool(admin.info("persistence")["rdb_last_bgsave_status"] == "err")

        wait_until(failed, what="it cannot save")
        yield


@contextmanager
def without_right(server: StoreServer, admin: Any) -> Iterator[None]:
    """The user may read and not write."""
    admin.execute_command("ACL", "SETUSER", "run", "-@write")
    try:
        yield
    finally:
        admin.execute_command("ACL", "SETUSER", "run", "+@all")


@contextmanager
def other_password(server: StoreServer, admin: Any) -> Iterator[None]:
    """Connections of old are ended with it."""
    words = ("ACL", "SETUSER", "run", "resetpass")
    admin.execute_command(*words, ">another-password")
    admin.execute_command("CLIENT", "KILL", "USER", "run")
    try:
        yield
    finally:
        admin.execute_command(*words, ">of-the-run")


class Sayer:
    """A server in front of another one's socket: passes all on, or answers each command with one
    line. `url` is its own."""

    def __init__(self, socket_path: str) -> None:
        self.line = ""
        sayer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                sayer.serve(self.request, socket_path)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def serve(self, client: socket.socket, socket_path: str) -> None:
        """One connection."""
        with socket.socket(socket.AF_UNIX) as real, client:
            real.connect(socket_path)
            threading.Thread(target=_pass_on, args=(real, client), daemon=True).start()
            while received := client.recv(1 << 20):
                if self.line:
                    client.sendall(f"-{self.line}\r\n".encode() * _commands(received))
                else:
                    real.sendall(received)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)


def _pass_on(real: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):  # one of them has hung up
        while answer := real.recv(1 << 20):
            client.sendall(answer)


def _commands(received: bytes) -> int:
    """How many commands these are; a test sends no large one while a line is set."""
    count, rest = 0, received
    while rest.startswith(b"*"):
        parts, _, rest = rest[1:].partition(b"\r\n")
        for _ in range(int(parts)):
            length, _, rest = rest[1:].partition(b"\r\n")
            rest = rest[int(length) + 2 :]
        count += 1
    return count
