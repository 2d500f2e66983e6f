"""Who does not belong gets nothing and stops nothing: bad frames, too large ones, strangers."""

import contextlib
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import zmq

from bamboo.core.events import FaultScope
from bamboo.errors import InputError
from bamboo.ports import Buffer
from bamboo.runtime.node.faults import scope_of
from bamboo.runtime.wire import login_guard, transport
from bamboo.runtime.wire.frames import MOST_FRAME_BYTES, encode, to_buffer
from bamboo.runtime.wire.keys import RunKeys
from bamboo.runtime.wire.login_guard import FEW_WAITING, MOST_WAITING, raise_file_limit
from bamboo.runtime.wire.transport import ZmqTransport
from testbed.waiting import wait_until
from tests.contracts.transport_net import (
    KEYS,
    NEVER_S,
    A,
    B,
    C,
    Net,
    gone,
    key,
    raw_sender,
    receive,
    steps,
    with_keys,
)
from tests.security.worker_ports import FRAME_BYTES as FRAME_SIZES
from tests.security.worker_ports import GREETINGS, Crowd, large_frame, silence, slow_greeting

pytestmark = pytest.mark.timeout(60)

# ---------------------------------------------------------------- bad frames


(GOOD,) = encode(
    key(9),
    sender=A,
    generation=1,
    meta={},
    buffers=[Buffer(dtype="f4", shape=(2,), data=memoryview(b"12345678"))],
)


def header(text: bytes, length: int | None = None) -> bytes:
    """A frame that begins like one of ours."""
    return (len(text) if length is None else length).to_bytes(4, "little") + text


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"no",
        b"not json",
        header(b"not json"),
        header(b"\xff\xfe"),
        header(b"[" * 100_000),
        header(b"{}"),
        header(b"{}", length=1 << 31),
        header(b"x" * (2 << 20)),
        GOOD[:-8],
        GOOD[:-1],
        GOOD + b"more",
        GOOD.replace(b'"f4"', b'"o4"'),
        GOOD.replace(b"[2]", b"[9]"),
        GOOD.replace(b'"act"', b'"now"'),
        GOOD.replace(b", 9,", b",1e,"),
    ],
    ids=range(16),
)
def test_malformed_frames_are_counted_and_dropped(net: Net, frame: bytes) -> None:
    a, b = net.pair()
    with raw_sender(b, with_keys(net)) as sender:
        sender.send(frame)
        sender.send(GOOD)
        assert steps(receive(b, 1)) == [9]
    assert b.malformed == 1
    a.send(B, key(1), (), {})
    assert steps(receive(b, 1)) == [1]


def test_a_frame_beyond_the_limit_ends_its_connection_only(net: Net) -> None:
    a, b = net.pair(message_limit_bytes=1 << 16)
    with raw_sender(b, with_keys(net)) as sender:
        sender.send(GOOD + b"x" * (1 << 17))
        a.send(B, key(1), (), {})
        assert steps(receive(b, 1)) == [1]
        assert not b.poll(NEVER_S)
    assert b.malformed == 0, "it is refused before it is read"
    a.send(B, key(2), [to_buffer(torch.zeros(1 << 15))], {})
    assert gone(a)[0].node == B, "a member that sends such a frame is cut off as well"


# ---------------------------------------------------------------- strangers


def no_keys(sender: zmq.Socket[bytes]) -> None:
    del sender


def own_keys(sender: zmq.Socket[bytes]) -> None:
    """The server's public key is known, as it may be, but the client's is made up."""
    public, secret = zmq.curve_keypair()
    sender.curve_serverkey = KEYS.server_public
    sender.curve_publickey, sender.curve_secretkey = public, secret


def another_run(sender: zmq.Socket[bytes]) -> None:
    other = RunKeys.generate()
    sender.curve_serverkey = other.server_public
    sender.curve_publickey = other.client_public
    sender.curve_secretkey = other.client_secret


def another_password(sender: zmq.Socket[bytes]) -> None:
    sender.plain_username, sender.plain_password = b"worker", KEYS.client_public


@pytest.mark.parametrize("prepare", [no_keys, own_keys, another_run, another_password])
def test_a_stranger_without_the_runs_keys_is_not_heard(
    tcp: Net, prepare: Callable[[zmq.Socket[bytes]], None]
) -> None:
    a, b = tcp.pair()
    with raw_sender(b, prepare) as sender:
        for _ in range(3):
            sender.send(GOOD)
        assert not b.poll(0.5)
        a.send(B, key(1), (), {})
        assert steps(receive(b, 1)) == [1]
    assert b.malformed == 0
    assert not a.wait_gone(NEVER_S)
    assert not b.wait_gone(NEVER_S)


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 4096,
        bytes(range(256)) * 64,
        b"",
        GREETING,
        GREETING + b"\x04\xff" + b"\xff" * 8,
        GREETING.replace(b"CURVE", b"NULL\0") + b"\x04\x19\x05READY" + bytes(18) + b"\x00\x01x",
    ],
    ids=["http", "zeros", "bytes", "silence", "greeting", "endless", "no-security"],
)
def test_a_stranger_with_raw_bytes_gets_and_stops_nothing(tcp: Net, garbage: bytes) -> None:
    a, b = tcp.pair()
    host, port = b.endpoint.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=5.0) as stranger:
        stranger.sendall(garbage)
        assert not b.poll(0.2)
        a.send(B, key(1), (), {})
        assert steps(receive(b, 1)) == [1]
        said = _read_some(stranger)
        for secret in (KEYS.server_secret, KEYS.client_secret, KEYS.client_public, b"bamboo"):
            assert secret not in said
    assert b.malformed == 0
    assert not a.wait_gone(NEVER_S)


def _read_some(connection: socket.socket) -> bytes:
    connection.settimeout(0.2)
    out = b""
    with contextlib.suppress(OSError):
        while part := connection.recv(4096):
            out += part
    return out


@contextlib.contextmanager
def crowd_at(to: ZmqTransport) -> Iterator[Crowd]:
    """Strangers at the port of a member."""
    host, port = to.endpoint.removeprefix("tcp://").split(":")
    crowd = Crowd((host, int(port)))
    try:
        yield crowd
    finally:
        crowd.close()


def meanwhile(crowd: Crowd, what: str, condition: Callable[[], bool]) -> None:
    """Let them speak until the condition holds."""

    def spoken() -> bool:
        crowd.work(time.monotonic() + 0.05)
        return condition()

    wait_until(spoken, what=what, timeout_s=20.0)


def test_many_strangers_stop_nothing(tcp: Net) -> None:
    raise_file_limit()  # they are in this process, too
    a, b = tcp.pair()
    with crowd_at(b) as crowd:
        crowd.add(MOST_WAITING + 300, silence)
        crowd.add(20, slow_greeting)
        for n in range(20):
            a.send(B, key(n), [to_buffer(torch.ones(1000))], {})
        assert steps(receive(b, 20)) == list(range(20))
        meanwhile(crowd, "the end of the oldest", lambda: crowd.held() <= MOST_WAITING)
        assert crowd.held() > MOST_WAITING // 2, "those that may be about to log in are let alone"
        new = tcp.member(C)
        members = {A: a.endpoint, B: b.endpoint, C: new.endpoint}
        for one in (a, b, new):
            one.reconfigure(generation=2, members=members)
        new.send(B, key(30), (), {})
        assert steps(receive(b, 1)) == [30]
    assert not a.wait_gone(NEVER_S)
    assert not b.wait_gone(NEVER_S)


def test_strangers_do_not_take_the_last_descriptors(
    tcp: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tcp.pair()
    a.send(B, key(0), (), {})
    assert steps(receive(b, 1)) == [0]
    monkeypatch.setattr(login_guard, "_reserve_from", lambda: 0)
    with crowd_at(b) as crowd:
        crowd.add(FEW_WAITING + 20, silence)
        meanwhile(crowd, "the end of the oldest", lambda: crowd.held() <= FEW_WAITING)
        for n in range(5):
            a.send(B, key(n), (), {})
        assert steps(receive(b, 5)) == list(range(5)), "who has logged in stays"


@pytest.mark.parametrize("mechanism", GREETINGS)
@pytest.mark.parametrize("size_bytes", FRAME_SIZES)
def test_a_stranger_cannot_make_a_node_hold_much(
    tcp: Net, mechanism: bytes, size_bytes: int
) -> None:
    a, b = tcp.pair(message_limit_bytes=2 << 30)
    with crowd_at(b) as crowd:
        crowd.add(6, large_frame(mechanism, size_bytes))
        meanwhile(crowd, "the end of all strangers", lambda: not crowd.held())
        # What is on its way in the kernels of both sides comes on top of a frame.
        assert crowd.most_taken_bytes() < 4 * MOST_FRAME_BYTES
        a.send(B, key(1), [to_buffer(torch.zeros(MOST_FRAME_BYTES))], {})
        assert steps(receive(b, 1)) == [1]


def test_where_the_kernel_counts_no_bytes_nobody_is_judged_by_them(
    tcp: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "counts_bytes", lambda: False)
    monkeypatch.setattr(login_guard, "_bytes_of", lambda _: (0, 1 << 20))
    a, b = tcp.pair()
    a.send(B, key(1), (), {})
    assert steps(receive(b, 1)) == [1]
    assert not a.wait_gone(NEVER_S)


def test_this_kernel_counts_the_bytes_of_a_connection() -> None:
    """Else the tests above show nothing."""
    assert login_guard.counts_bytes()


# ---------------------------------------------------------------- descriptors


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull, "rb") as highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno() + 1, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_members_go_on_without_any_descriptor_left(net: Net) -> None:
    a, b = net.pair()
    a.send(B, key(0), (), {})
    assert steps(receive(b, 1)) == [0]
    with no_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        b.wake()
        assert not b.poll(20.0), "the wait was ended"
        a.send(B, key(1), [to_buffer(torch.zeros(MOST_FRAME_BYTES))], {})
        assert steps(receive(b, 1)) == [1]
        a.reconfigure(generation=2, members={A: a.endpoint})


def test_strangers_are_ended_without_any_descriptor_left(
    tcp: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, b = tcp.pair()
    guard = b._guard
    assert guard is not None
    with crowd_at(b) as crowd:
        crowd.add(FEW_WAITING + 20, silence)
        meanwhile(crowd, "all of them", lambda: len(guard._waiting) == FEW_WAITING + 20)
        with no_descriptors():
            monkeypatch.setattr(login_guard, "_reserve_from", lambda: 0)
            meanwhile(crowd, "the end of the oldest", lambda: crowd.held() <= FEW_WAITING)
        assert crowd.held() > FEW_WAITING // 2, "by the guard, before the end of their handshake"


def test_a_new_peer_waits_a_moment_for_descriptors(
    tcp: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TCP alone: libzmq 4.3.5 ends a process that cannot accept a connection of its own host
    for want of descriptors (an assertion in ipc_listener.cpp), which is a lost node."""
    a, b = tcp.pair()
    new = tcp.member(C)
    members = {A: a.endpoint, B: b.endpoint, C: new.endpoint}
    with no_descriptors(), pytest.raises(zmq.ZMQError, match="Too many open files") as found:
        a.reconfigure(generation=2, members=members)
    assert scope_of(found.value) is FaultScope.NODE, "it is this node's fault, and not the run's"
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A busy machine may not run the timer's thread within the second that a node waits.
    monkeypatch.setattr(transport, "DESCRIPTORS_WAIT_S", 30.0)
    with no_descriptors():
        later = threading.Timer(0.2, resource.setrlimit, (resource.RLIMIT_NOFILE, before))
        later.start()
        a.reconfigure(generation=2, members=members)
        later.join()
    a.send(C, key(1), (), {})
    new.reconfigure(generation=2, members=members)
    assert steps(receive(new, 1)) == [1]


def test_keys_are_a_must_between_hosts() -> None:
    with pytest.raises(ValueError, match="needs the run's keys"):
        ZmqTransport(me=A, bind="tcp://127.0.0.1:*")


def test_keys_survive_a_document() -> None:
    assert RunKeys.from_dict(json.loads(json.dumps(KEYS.to_dict()))) == KEYS


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o770])
def test_on_one_host_the_folder_is_the_owners_alone(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(InputError, match=f"has mode {mode:04o} .*give it mode 0700"):
        ZmqTransport(me=A, bind=f"ipc://{folder}/a")
    with pytest.raises(InputError, match="is not there"):
        ZmqTransport(me=A, bind=f"ipc://{folder}/missing/a")
    assert not list(folder.iterdir())
    folder.chmod(0o700)
    ZmqTransport(me=A, bind=f"ipc://{folder}/a").close()
