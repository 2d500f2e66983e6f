"""A fork server: modules are imported once, then the look at a model and every worker start as
forks of this process.

`… cloud.local.zygote SOCKET MODULE…` imports the modules, listens on a unix socket and forks one
child per connection. Of `module:argument`, the module's function `preload` is called with the
argument. A request is one JSON line, Request; the answers are two JSON lines: `{"pid":
n}` at once and `{"exit": status}` when the child ends (negative: the signal).

Rules: it always has one thread (a fork of a threaded process inherits locks that no thread will
release); it runs no code of the user's, whatever its children run; it kills only what is left of a
child's own group; it ends when its standard input ends, which the host holds.
"""

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from bamboo import loading
from bamboo.local_sockets import accept_own, listen_privately
from bamboo.new_files import open_to_append

REQUEST_LIMIT_BYTES = 1 << 20
_READ_DEADLINE_S = 2.0
_CHILD_BROKE = 70
_STREAMS = 3
_OUTPUT, _ERRORS = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Fork a child, put it into process group `group` (of this session), send its output to the
    file `log` and call `entry` (`package.module:function`) with `config`.

    Group 0 means a new group, of which nothing is left when the end of the child is reported.
    Without a log three descriptors come with the request: its input, output and errors. Without an
    entry nothing is forked, and the server's own output goes to `log` from then on.
    """

    entry: str
    config: Mapping[str, str]
    group: int
    log: str

    def line(self) -> bytes:
        """The request as it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> "Request":
        """The request in a line; raises ValueError when it is malformed."""
        try:
            raw = json.loads(line)
            return cls(
                entry=str(raw["entry"]),
                config={str(k): str(v) for k, v in raw["config"].items()},
                group=int(raw["group"]),
                log=str(raw["log"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a fork request: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    connection: socket.socket
    leads: bool
    """Whether it has a group of its own."""


class Zygote:
    """The loop: accept, fork, report. Every file descriptor it owns is closed in its children."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_write, False)
        os.set_blocking(self._wakeup_read, False)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Serve until standard input ends."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wakeup_read, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj == self._wakeup_read:
                    os.read(self._wakeup_read, 4096)
                    self._report_exits()
                elif not os.read(0, 4096):
                    return

    def _accept(self) -> None:
        connection = accept_own(self._listener)
        if connection is None:
            return
        streams: list[int] = []
        try:
            self._serve(Request.parse(_read_line(connection, streams)), connection, streams)
        except (OSError, ValueError) as error:
            _answer(connection, {"error": str(error)})
            connection.close()
        finally:
            for stream in streams:
                os.close(stream)

    def _serve(self, request: Request, connection: socket.socket, streams: list[int]) -> None:
        if len(streams) != (0 if request.log else _STREAMS):
            raise ValueError(f"{len(streams)} streams came, and the log is {request.log!r}")
        if not request.entry:
            _redirect(request.log, (_ERRORS,))
            _answer(connection, {"log": request.log})
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            self._become(request, connection, streams)
        self._children[pid] = _Child(connection=connection, leads=request.group == 0)
        _answer(connection, {"pid": pid})

    def _report_exits(self) -> None:
        while self._children:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            child = self._children.pop(ended.si_pid)
            if child.leads:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(ended.si_pid, signal.SIGKILL)  # before its number is reused
            _, status = os.waitpid(ended.si_pid, 0)
            with child.connection:
                _answer(child.connection, {"exit": os.waitstatus_to_exitcode(status)})

    def _become(
        self, request: Request, connection: socket.socket, streams: Sequence[int]
    ) -> NoReturn:
        """The child's side: never returns into the loop, whatever happens."""
        status = _CHILD_BROKE
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Without its group the instance was taken meanwhile, and the call fails.
            os.setpgid(0, request.group)
            self._close_inherited(connection)
            if request.log:
                _no_input()
                _redirect(request.log, (_OUTPUT, _ERRORS))
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            status = run_entry(request.entry, request.config)
        except BaseException:  # noqa: BLE001 - the end of a process: its log gets the traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status & 0xFF)

    def _close_inherited(self, connection: socket.socket) -> None:
        self._selector.close()
        self._listener.close()
        connection.close()
        for other in self._children.values():
            other.connection.close()
        os.close(self._wakeup_read)
        os.close(self._wakeup_write)


def run_entry(entry: str, config: Mapping[str, str]) -> int:
    """Call `package.module:function` with `config`. Its result becomes an exit status: None is 0,
    text goes to standard error and is 1."""
    module, _, function = entry.partition(":")
    try:
        result = getattr(importlib.import_module(module), function)(config)
    except SystemExit as leave:
        result = leave.code
    if result is None:
        return 0
    if isinstance(result, int):
        return result
    sys.stderr.write(f"{result}\n")
    return 1


def _redirect(log: str, numbers: Sequence[int]) -> None:
    with open_to_append(Path(log)) as out:
        for number in numbers:
            os.dup2(out.fileno(), number)


def _no_input() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _read_line(connection: socket.socket, streams: list[int]) -> bytes:
    """The line of a request, within its deadline, however slowly it comes: meanwhile no other
    request is served. The descriptors that come with it are added to `streams`."""
    line, end_s = b"", time.monotonic() + _READ_DEADLINE_S
    while not line.endswith(b"\n"):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise ValueError(f"the request took longer than {_READ_DEADLINE_S} s")
        connection.settimeout(left_s)
        part, came, _, _ = socket.recv_fds(connection, 65536, _STREAMS)
        streams += came
        if len(streams) > _STREAMS:
            raise ValueError(f"more than {_STREAMS} streams came")
        if not part or len(line) + len(part) > REQUEST_LIMIT_BYTES:
            raise ValueError("the request is cut short or too long")
        line += part
    return line


def _answer(connection: socket.socket, message: Mapping[str, object]) -> None:
    # A caller that is gone needs no answer; the child notices by its own pipe.
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


def main(argv: list[str]) -> int:
    """Preload, listen, print `ready`, serve."""
    path = Path(argv[0])
    with loading.for_good():
        for name in argv[1:]:
            module, _, argument = name.partition(":")
            loaded = importlib.import_module(module)
            if argument:
                loaded.preload(argument)
    with listen_privately(path, backlog=64) as listener:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        Zygote(listener).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
