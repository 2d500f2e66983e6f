"""Who may ask at a unix socket: its own user, and nobody who drips, repeats or says nonsense."""

import json
import os
import selectors
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bamboo import local_sockets
from bamboo.agent import link
from bamboo.agent.link import WorkerLink
from bamboo.errors import BambooError
from bamboo.local_sockets import accept_own, listen_privately, user_of
from cloud.local import control, host, zygote
from cloud.local.control import ControlServer, seconds_of
from testbed.waiting import wait_until

pytestmark = pytest.mark.timeout(30)
CONNECT = """
import os, socket, sys
line = socket.socket(socket.AF_UNIX)
os.setuid(65534)
line.connect(sys.argv[1])
line.recv(1)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.sock"


def connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))  # one with a deadline would not wait for its turn
    connection.settimeout(5.0)
    return connection


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o777, 0o750])
def test_no_socket_is_made_where_others_may_enter(path: Path, mode: int) -> None:
    path.parent.chmod(mode)
    with pytest.raises(BambooError, match=f"not this user's alone.*`chmod 700 {path.parent}`"):
        listen_privately(path, backlog=1)
    assert not path.exists()


def test_its_own_user_is_let_in(path: Path) -> None:
    with listen_privately(path, backlog=1) as listener, connected(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        connection = accept_own(listener)
        assert connection is not None
        assert user_of(connection) == os.geteuid()
        connection.close()


def test_another_user_is_hung_up_on() -> None:
    """Even where the folder and the socket were opened to all afterwards."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "x.sock"
        with listen_privately(path, backlog=1) as listener:
            path.chmod(0o666)
            path.parent.chmod(0o711)
            with subprocess.Popen([sys.executable, "-c", CONNECT, str(path)]) as other:
                listener.settimeout(10.0)
                assert accept_own(listener) is None
                assert other.wait(timeout=10) == 0, "it was not kept waiting"


def test_the_word_of_the_kernel_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_sockets, "user_of", lambda _: os.geteuid() + 1)
    with listen_privately(path, backlog=1) as listener, connected(path) as other:
        assert accept_own(listener) is None
        assert other.recv(1) == b""


class Served:
    """A control socket, and the loop that serves it."""

    def __init__(self, path: Path) -> None:
        self._selector = selectors.DefaultSelector()
        self.server = ControlServer(
            path=path, selector=self._selector, handle=self.answer, alone=lambda: None
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"ok": True, "s": seconds_of(request, "s") if "s" in request else request["op"]}

    def _serve(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.02):
                key.data()
        self.server.close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._selector.close()


@pytest.fixture
def served(path: Path) -> Iterator[Served]:
    one = Served(path)
    yield one
    one.stop()


def answer_to(connection: socket.socket, line: bytes) -> Mapping[str, Any]:
    connection.sendall(line + b"\n")
    answer = json.loads(connection.makefile().readline())
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 60000,
        b"[]",
        b"\xff",
        b'{"op": "x", "s": NaN}',
        b'{"op": "x", "s": 1e999}',
        b'{"op": "x", "s": []}',
    ],
    ids=lambda line: line[:24].decode(errors="replace"),
)
def test_nonsense_is_answered_and_ends_nothing(path: Path, served: Served, line: bytes) -> None:
    with connected(path) as connection:
        assert not answer_to(connection, line)["ok"]
        assert answer_to(connection, b'{"op": "y"}')["ok"]


def test_callers_that_say_nothing_make_room(path: Path, served: Served) -> None:
    """All but who holds: a launcher is there for as long as its line is."""
    with connected(path) as holder:
        assert answer_to(holder, b'{"op": "hold"}')["ok"]
        lines = [connected(path) for _ in range(2 * control._MOST_CALLERS)]
        with connected(path) as caller:
            assert answer_to(caller, b'{"op": "y"}')["ok"]
        assert answer_to(holder, b'{"op": "y"}')["ok"]
        assert lines[0].recv(1) == b"", "the oldest went"
        for line in lines:
            line.close()


def test_a_fork_request_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server has one thread: nobody else's worker would start meanwhile."""
    monkeypatch.setattr(zygote, "_READ_DEADLINE_S", 0.3)
    here, there = socket.socketpair()
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.05):
            there.send(b" ")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        with pytest.raises((ValueError, TimeoutError)):
            zygote._read_line(here, [])
    finally:
        stop.set()
        dripping.join()
        here.close()
        there.close()


@pytest.mark.parametrize("line", [b"[" * 100000, b"[]", b"{}", b"\xff"])
def test_a_fork_request_of_any_form_is_none(line: bytes) -> None:
    with pytest.raises(ValueError):
        zygote.Request.parse(line)


def test_a_worker_is_heard_beside_so_many_and_no_more(path: Path) -> None:
    heard, stop = WorkerLink(path, taken=lambda: True), threading.Event()
    serving = threading.Thread(target=heard.run, args=(stop,))
    serving.start()
    with ExitStack() as held:
        held.callback(serving.join)
        held.callback(stop.set)
        worker = held.enter_context(connected(path))
        worker.sendall(b'{"progress": 1}\n')
        assert worker.recv(1)
        others = []
        for _ in range(link._MOST_CONNECTIONS):
            others.append(held.enter_context(connected(path)))
        assert others[-1].recv(1) == b""
        worker.sendall(b'{"progress": 2}\n')
        wait_until(lambda: '"progress": 2' in heard.payload, what="the worker is heard")


def test_a_wait_for_months_is_one_that_the_kernel_takes() -> None:
    with selectors.DefaultSelector() as selector:
        read, write = os.pipe()
        os.write(write, b"x")
        selector.register(read, selectors.EVENT_READ)
        assert selector.select(host._LONGEST_WAIT_S)
        for end in (read, write):
            os.close(end)
