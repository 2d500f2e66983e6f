"""One suite for every way that members reach each other: within a host, and between hosts.

What is promised stands in `ports.Transport`. Peers that are killed or stopped are real processes.
"""

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq

from bamboo.ids import NodeId
from bamboo.ports import Buffer, Delivered, MessageKey, PeerGone
from bamboo.runtime.link import VirtualLink
from bamboo.runtime.transport import RunKeys, ZmqTransport
from bamboo.runtime.wire import encode, to_buffer, to_tensor
from bamboo.topology.slots import Slot
from tests.e2e.forker import Process, close_shared_forker, shared_forker
from tests.support import wait_until

pytestmark = pytest.mark.timeout(60)

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
KEYS = RunKeys.generate()
HERE = Slot(pipeline=0, stage=0)
NEVER_S = 0.15
"""How long a message that must not come is waited for, after one that must has come."""


def key(step: int) -> MessageKey:
    return MessageKey(kind="act", to=HERE, source=HERE, step=step)


class Net:
    """Makes members of one run over one kind of transport, and closes them."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.keys = KEYS if kind == "tcp" else None
        self.made: list[ZmqTransport] = []
        self.processes: list[Process] = []

    def bind(self, node: str) -> str:
        return f"ipc://{self.folder}/{node}" if self.kind == "ipc" else "tcp://127.0.0.1:*"

    def member(self, node: NodeId, **settings: Any) -> ZmqTransport:
        made = ZmqTransport(me=node, bind=self.bind(node), keys=self.keys, **settings)
        self.made.append(made)
        return made

    def pair(self, **settings: Any) -> tuple[ZmqTransport, ZmqTransport]:
        """Members a and b of generation 1."""
        a, b = self.member(A, **settings), self.member(B, **settings)
        members = {A: a.endpoint, B: b.endpoint}
        for one in (a, b):
            one.reconfigure(generation=1, members=members)
        return a, b

    def process(self, node: NodeId, to: ZmqTransport, to_node: NodeId) -> tuple[Process, str]:
        """A peer in a process of its own, which has connected to `to`; and its endpoint."""
        file = self.folder / f"{node}.endpoint"
        config = {
            "node": node,
            "bind": self.bind(node),
            "keys": json.dumps(self.keys.to_dict()) if self.keys else "",
            "to": to_node,
            "endpoint": to.endpoint,
            "endpoint_file": str(file),
        }
        log = self.folder / f"{node}.log"
        entry = "tests.contracts.transport_peer:main"
        process = shared_forker().start(config, log, entry)
        self.processes.append(process)
        wait_until(file.exists, what="the peer's endpoint", timeout_s=20)
        return process, file.read_text()

    def close(self) -> None:
        for process in self.processes:
            process.close()
        for made in self.made:
            made.close()


@pytest.fixture(scope="module", autouse=True)
def _fork_server() -> Iterator[None]:
    yield
    close_shared_forker()


@pytest.fixture(params=["ipc", "tcp"])
def net(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Net]:
    made = Net(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def tcp(tmp_path: Path) -> Iterator[Net]:
    made = Net("tcp", tmp_path)
    yield made
    made.close()


def receive(at: ZmqTransport, count: int, timeout_s: float = 10.0) -> list[Delivered]:
    """The next messages, at least `count`."""
    out: list[Delivered] = []

    def enough() -> bool:
        out.extend(at.poll(0.05))
        return len(out) >= count

    wait_until(enough, what=f"{count} messages", timeout_s=timeout_s, poll_s=0.0)
    return out


def steps(messages: Sequence[Delivered]) -> list[int]:
    return [m.key.step for m in messages]


def gone(at: ZmqTransport, timeout_s: float = 10.0) -> list[PeerGone]:
    return wait_until(
        lambda: list(at.wait_gone(0.1)), what="a lost peer", timeout_s=timeout_s, poll_s=0.0
    )


# ---------------------------------------------------------------- messages


def test_messages_of_one_sender_arrive_whole_and_in_order(net: Net) -> None:
    a, b = net.pair()
    tensors = [torch.full((n % 7, 1 + n * n), float(n)) for n in range(60)]
    for n, tensor in enumerate(tensors):
        assert a.send(B, key(n), [to_buffer(tensor)] * 2, {"n": n})
    got = receive(b, 60)
    assert steps(got) == list(range(60))
    for n, message in enumerate(got):
        assert (message.sender, message.generation, message.meta) == (A, 1, {"n": n})
        assert all(torch.equal(to_tensor(x), tensors[n]) for x in message.buffers)


def test_a_large_tensor_arrives_whole(net: Net) -> None:
    a, b = net.pair()
    big = torch.arange(6_000_000, dtype=torch.int64)
    a.send(B, key(0), [to_buffer(big)], {})
    (message,) = receive(b, 1)
    assert torch.equal(to_tensor(message.buffers[0]), big)
    assert a.sent_bytes == 48_000_000


def test_both_directions_and_several_senders(net: Net) -> None:
    a, b, c = net.member(A), net.member(B), net.member(C)
    members = {A: a.endpoint, B: b.endpoint, C: c.endpoint}
    for one in (a, b, c):
        one.reconfigure(generation=1, members=members)
    assert a.send(C, key(1), (), {})
    assert b.send(C, key(2), (), {})
    assert c.send(A, key(3), (), {})
    assert sorted(steps(receive(c, 2))) == [1, 2]
    assert steps(receive(a, 1)) == [3]


def test_sending_to_nobody_says_so(net: Net) -> None:
    a, _ = net.pair()
    assert not a.send(C, key(0), (), {})
    assert not a.send(A, key(0), (), {})


def test_an_empty_wait_ends_at_its_deadline(net: Net) -> None:
    a, _ = net.pair()
    start_s = time.monotonic()
    assert not a.poll(0.1)
    assert 0.09 <= time.monotonic() - start_s < 5.0


def test_wake_ends_a_wait_at_once(net: Net) -> None:
    a, _ = net.pair()
    for _ in range(3):
        waker = threading.Timer(0.05, a.wake)
        waker.start()
        start_s = time.monotonic()
        assert not a.poll(20.0)
        assert time.monotonic() - start_s < 10.0
        waker.join()


# ---------------------------------------------------------------- who is heard


def test_a_sender_that_is_no_member_is_not_heard(net: Net) -> None:
    a, b = net.pair()
    stranger = net.member(C)
    stranger.reconfigure(generation=1, members={B: b.endpoint})
    assert stranger.send(B, key(66), (), {})
    a.send(B, key(1), (), {})
    assert steps(receive(b, 1)) == [1]
    assert not b.poll(NEVER_S)
    # What it said before it became a member is not brought back when it does.
    b.reconfigure(generation=2, members={A: a.endpoint, B: b.endpoint, C: stranger.endpoint})
    assert not b.poll(NEVER_S)
    stranger.send(B, key(2), (), {})
    assert steps(receive(b, 1)) == [2]


def test_a_fenced_member_is_not_heard_any_more(net: Net) -> None:
    a, b = net.pair()
    a.send(B, key(1), (), {})
    assert steps(receive(b, 1)) == [1]
    b.reconfigure(generation=2, members={B: b.endpoint})
    a.send(B, key(66), (), {})
    assert not b.poll(NEVER_S)


def test_a_message_of_a_later_generation_waits_for_it(net: Net) -> None:
    a, b = net.pair()
    new = net.member(C)
    new.reconfigure(generation=2, members={B: b.endpoint})
    for step in (5, 6):
        new.send(B, key(step), (), {})
    a.send(B, key(1), (), {})
    assert steps(receive(b, 1)) == [1]
    assert not b.poll(NEVER_S)
    b.reconfigure(generation=2, members={A: a.endpoint, B: b.endpoint, C: new.endpoint})
    new.send(B, key(7), (), {})
    assert steps(receive(b, 3)) == [5, 6, 7]


# ---------------------------------------------------------------- peers that go


def test_a_killed_peer_is_told_once_and_soon(net: Net) -> None:
    a = net.member(A)
    peer, endpoint = net.process(B, a, A)
    a.reconfigure(generation=1, members={A: a.endpoint, B: endpoint})
    assert receive(a, 1)[0].sender == B
    a.send(B, key(0), (), {})
    assert not a.wait_gone(NEVER_S)
    killed_s = time.monotonic()
    peer.signal(signal.SIGKILL)
    (found,) = gone(a)
    assert found.node == B
    assert killed_s <= found.seen_at_s < killed_s + 5.0
    assert not a.wait_gone(NEVER_S)
    # Handing over to the dead does not block, whatever it answers.
    a.send(B, key(1), (), {})
    a.reconfigure(generation=2, members={A: a.endpoint})
    assert not a.send(B, key(2), (), {})
    assert not a.wait_gone(NEVER_S)


def test_what_the_dead_had_sent_before_is_still_delivered(net: Net) -> None:
    a = net.member(A)
    peer, endpoint = net.process(B, a, A)
    a.reconfigure(generation=1, members={A: a.endpoint, B: endpoint})
    message = receive(a, 1)
    peer.signal(signal.SIGKILL)
    assert gone(a)[0].node == B
    assert [m.key.kind for m in message] == ["ack"]


def test_a_peer_that_died_before_the_connection_is_told(net: Net) -> None:
    a = net.member(A)
    peer, endpoint = net.process(B, a, A)
    peer.signal(signal.SIGKILL)
    assert peer.status(10.0) == -9
    a.reconfigure(generation=1, members={A: a.endpoint, B: endpoint})
    assert gone(a)[0].node == B
    assert not a.wait_gone(NEVER_S)


def test_a_stopped_peer_is_told_after_missed_heartbeats(net: Net) -> None:
    a = net.member(A, heartbeat_s=0.4)
    peer, endpoint = net.process(B, a, A)
    a.reconfigure(generation=1, members={A: a.endpoint, B: endpoint})
    a.send(B, key(0), (), {})
    assert receive(a, 2), "both directions are up"
    quiet_until_s = time.monotonic() + 1.0
    while time.monotonic() < quiet_until_s:
        assert not a.wait_gone(0.1), "a live peer that says nothing is not lost"
    peer.signal(signal.SIGSTOP)
    assert gone(a)[0].node == B


def test_a_peer_that_is_dropped_is_not_lost(net: Net) -> None:
    a, b = net.pair()
    a.send(B, key(0), (), {})
    receive(b, 1)
    a.reconfigure(generation=2, members={A: a.endpoint})
    assert not a.wait_gone(NEVER_S)


def test_another_thread_sees_the_loss_while_this_one_computes(net: Net) -> None:
    a = net.member(A)
    seen: list[PeerGone] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.extend(a.wait_gone(0.1))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        peer, endpoint = net.process(B, a, A)
        a.reconfigure(generation=1, members={A: a.endpoint, B: endpoint})
        assert receive(a, 1)
        peer.signal(signal.SIGKILL)
        wait_until(lambda: seen, what="the loss")
    finally:
        stop.set()
        watcher.join()
    assert [one.node for one in seen] == [B]


# ---------------------------------------------------------------- bad frames


@contextlib.contextmanager
def raw_sender(to: ZmqTransport, prepare: Callable[[zmq.Socket[bytes]], None]) -> Iterator[Any]:
    """A plain socket, connected to the member `to`."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender:
        sender.setsockopt(zmq.LINGER, 0)
        prepare(sender)
        sender.connect(to.endpoint)
        yield sender


def with_keys(net: Net) -> Callable[[zmq.Socket[bytes]], None]:
    def prepare(sender: zmq.Socket[bytes]) -> None:
        if net.keys is not None:
            sender.curve_serverkey = net.keys.server_public
            sender.curve_publickey = net.keys.client_public
            sender.curve_secretkey = net.keys.client_secret

    return prepare


GOOD = encode(
    key(9),
    sender=A,
    generation=1,
    meta={},
    buffers=[Buffer(dtype="f4", shape=(2,), data=memoryview(b"12345678"))],
)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"not json"],
        [b"\xff\xfe"],
        [b"[" * 100_000],
        [b"{}"],
        [b"x" * (2 << 20)],
        [GOOD[0]],
        [GOOD[0], b"1234567"],
        [GOOD[0], b"12345678", b"more"],
        [GOOD[0].replace(b'"f4"', b'"o4"'), b"12345678"],
        [GOOD[0].replace(b"[2]", b"[-2]"), b"12345678"],
        [GOOD[0].replace(b'"act"', b'"now"'), b"12345678"],
        [GOOD[0].replace(b", 9,", b", Infinity,"), b"12345678"],
    ],
    ids=range(13),
)
def test_malformed_frames_are_counted_and_dropped(net: Net, frames: list[bytes]) -> None:
    a, b = net.pair()
    with raw_sender(b, with_keys(net)) as sender:
        sender.send_multipart(frames)
        sender.send_multipart(GOOD)
        assert steps(receive(b, 1)) == [9]
    assert b.malformed == 1
    a.send(B, key(1), (), {})
    assert steps(receive(b, 1)) == [1]


def test_a_frame_beyond_the_limit_ends_its_connection_only(net: Net) -> None:
    a, b = net.pair(frame_limit_bytes=1 << 16)
    with raw_sender(b, with_keys(net)) as sender:
        sender.send_multipart([GOOD[0], b"x" * (1 << 17)])
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


@pytest.mark.parametrize("prepare", [no_keys, own_keys, another_run])
def test_a_stranger_without_the_runs_keys_is_not_heard(
    tcp: Net, prepare: Callable[[zmq.Socket[bytes]], None]
) -> None:
    a, b = tcp.pair()
    with raw_sender(b, prepare) as sender:
        for _ in range(3):
            sender.send_multipart(GOOD)
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


def test_many_strangers_stop_nothing(tcp: Net) -> None:
    a, b = tcp.pair()
    host, port = b.endpoint.removeprefix("tcp://").split(":")
    with contextlib.ExitStack() as stack:
        for n in range(100):
            one = stack.enter_context(socket.create_connection((host, int(port)), timeout=5.0))
            one.sendall(bytes([n]) * n)
        for n in range(20):
            a.send(B, key(n), [to_buffer(torch.ones(1000))], {})
        assert steps(receive(b, 20)) == list(range(20))


def test_keys_are_a_must_between_hosts() -> None:
    with pytest.raises(ValueError, match="needs the run's keys"):
        ZmqTransport(me=A, bind="tcp://127.0.0.1:*")


def test_keys_survive_a_document() -> None:
    assert RunKeys.from_dict(json.loads(json.dumps(KEYS.to_dict()))) == KEYS


# ---------------------------------------------------------------- the virtual link


def test_a_virtual_link_holds_a_message_until_it_is_due(net: Net) -> None:
    a, b = net.pair(link=VirtualLink(gbps=0.0, latency_s=0.3))
    start_s = time.monotonic()
    a.send(B, key(1), (), {})
    assert not b.poll(0.1)
    assert steps(receive(b, 1)) == [1]
    assert time.monotonic() - start_s >= 0.3


def test_a_slow_link_keeps_the_order(net: Net) -> None:
    # 80 kB at 0.01 Gbps take 64 ms.
    a, b = net.pair(link=VirtualLink(gbps=0.01, latency_s=0.0))
    start_s = time.monotonic()
    for n in range(4):
        a.send(B, key(n), [to_buffer(torch.ones(20_000 if n < 2 else 1))], {})
    assert steps(receive(b, 4)) == [0, 1, 2, 3]
    assert time.monotonic() - start_s >= 0.128


def test_closing_twice_is_closing_once(net: Net) -> None:
    a, _ = net.pair()
    a.close()
    a.close()
