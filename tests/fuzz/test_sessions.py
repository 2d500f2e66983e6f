"""Sessions at a worker's port, before and after its login: nothing of what is said there stays, and
members go on with every bit."""

import contextlib
import json
import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import zmq

from bamboo.core.events import StopRequested
from bamboo.core.state import NodeStatus, Outcome
from bamboo.ids import NodeId
from bamboo.ports import Buffer
from bamboo.runtime.wire.frames import MOST_FRAME_BYTES, encode, to_buffer, to_tensor
from bamboo.runtime.wire.keys import RunKeys
from bamboo.runtime.wire.login_guard import raise_file_limit
from bamboo.runtime.wire.transport import ZmqTransport
from testbed.calm import difference
from testbed.cluster import cluster
from testbed.forker import close_shared_forker
from testbed.waiting import wait_until
from tests.contracts.transport_net import A, B, Net, key, receive, steps, with_keys
from tests.e2e.jobs import job
from tests.fuzz.cases import CASES, FEW
from tests.security.worker_ports import GREETINGS

SEED = 0 if CASES == FEW else random.randrange(1 << 32)
GROUP = 20
"""Sessions between two looks at what members say."""
MOST_OPEN = 40
"""Sessions that are not ended at once."""
GROWTH_BYTES = 96 << 20
"""What all sessions together may leave, or hold while they go on: less than twenty frames."""
COMMANDS = (
    b"\x05HELLO\x01\x00" + bytes(72) + bytes(120),
    b"\x05HELLO\x06worker\x08password",
    b"\x08INITIATE" + bytes(300),
    b"\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH",
    b"\x05ERROR\x03400",
    b"\x04PING\x00\x10ctx",
    b"\x07MESSAGE" + bytes(40),
)
"""Of ZMTP 3.1, with NULL, PLAIN and CURVE."""
HORIZON = 1_000_000
"""Steps of a run that ends when it is told to."""
MARK = b"no frame of ours"
"""Malformed, and counted: what comes before it has been read."""
(WHOLE,) = encode(
    key(9),
    sender=NodeId("z.9"),
    generation=1,
    meta={"x": [1.5]},
    buffers=[Buffer(dtype="f4", shape=(2,), data=memoryview(b"12345678"))],
)


@pytest.fixture(scope="module", autouse=True)
def _fork_server() -> Iterator[None]:
    yield
    close_shared_forker()


@pytest.fixture(params=["ipc", "tcp", "plain"])
def net(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Net]:
    raise_file_limit()  # both sides are in this process
    made = Net(request.param, tmp_path)
    yield made
    made.close()


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def command(rng: random.Random, body: bytes) -> bytes:
    """In a frame of ZMTP, whose length may be a lie."""
    size = rng.choice(
        [len(body), len(body), len(body) + 1, MOST_FRAME_BYTES, 1 << 40, (1 << 64) - 1]
    )
    flags = rng.choice([4, 6, 0, 1, 2, 7])
    head = (
        struct.pack("<BQ", flags, size) if rng.random() < 0.1 else struct.pack(">BQ", flags, size)
    )
    short = bytes([flags & ~2, len(body) & 255])
    return (head if flags & 2 else short) + body


def bent(rng: random.Random, words: bytes) -> bytes:
    """With some bytes changed, cut, doubled or put in."""
    out = bytearray(words)
    for _ in range(rng.choice([0, 0, 1, 3, 20])):
        at = rng.randrange(len(out) + 1)
        how = rng.randrange(4)
        if how == 0 and at < len(out):
            out[at] = rng.randrange(256)
        elif how == 1:
            del out[at : at + rng.randrange(20)]
        elif how == 2:
            out[at:at] = rng.randbytes(rng.randrange(1, 20))
        else:
            out[at:at] = out[at : at + 40]
    return bytes(out)


def words_before_login(rng: random.Random) -> bytes:
    said = [bent(rng, rng.choice([*GREETINGS.values(), b"GET / HTTP/1.0\r\n\r\n", b""]))]
    said += [bent(rng, command(rng, rng.choice(COMMANDS))) for _ in range(rng.randrange(5))]
    if rng.random() < 0.05:
        said.append(rng.randbytes(1 << rng.randrange(23)))
    return b"".join(said)


def frames_after_login(rng: random.Random) -> list[bytes]:
    """Of somebody who is no member, and of a member, but cut."""
    whole = (
        WHOLE if rng.random() < 0.7 else WHOLE.replace(b'"z.9"', b'"a"')[: -rng.randrange(1, 99)]
    )
    out = [bent(rng, whole) if whole is WHOLE else whole for _ in range(rng.randrange(4))]
    return [*out, *([rng.randbytes(1 << rng.randrange(20))] if rng.random() < 0.1 else []), MARK]


def connected(endpoint: str) -> socket.socket:
    if endpoint.startswith("ipc://"):
        made = socket.socket(socket.AF_UNIX)
        made.connect(endpoint.removeprefix("ipc://"))
        return made
    host, port = endpoint.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=10.0)


def members_go_on(a: ZmqTransport, b: ZmqTransport, step: int) -> None:
    sent = torch.full((50_000,), float(step))
    assert a.send(B, key(step), [to_buffer(sent)], {})
    got = [message for message in receive(b, 1) if message.sender == A]
    assert steps(got) == [step]
    assert torch.equal(to_tensor(got[0].buffers[0]), sent)


def test_sessions_before_login(net: Net) -> None:
    rng = random.Random(SEED)
    a, b = net.pair(message_limit_bytes=2 << 30)
    members_go_on(a, b, 0)
    before, before_files, most = resident_bytes(), descriptors(), 0
    with contextlib.ExitStack() as stack:
        sessions: list[socket.socket] = []
        for number in range(CASES):
            one = stack.enter_context(connected(b.endpoint))
            one.settimeout(10.0)
            with contextlib.suppress(OSError):  # the member has closed it meanwhile
                one.sendall(words_before_login(rng))
            sessions.append(one)
            if len(sessions) > MOST_OPEN or rng.random() < 0.5:
                ended = sessions.pop(rng.randrange(len(sessions)))
                if rng.random() < 0.3:  # at once, with a reset
                    ended.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                ended.close()
            if number % GROUP == 0:
                members_go_on(a, b, number + 1)
                most = max(most, resident_bytes())
    members_go_on(a, b, CASES + 1)
    # On one host there is no login: the folder of the sockets lets its owner in alone.
    assert b.malformed == 0 or net.kind == "ipc", "somebody got in"
    assert not a.wait_gone(0.0)
    assert not b.wait_gone(0.0)
    assert max(most, resident_bytes()) - before < GROWTH_BYTES, f"seed {SEED}"
    wait_until(
        lambda: descriptors() <= before_files + 8, what="the end of all sessions", timeout_s=20.0
    )


def test_sessions_after_login(net: Net) -> None:
    rng = random.Random(SEED)
    a, b = net.pair()
    members_go_on(a, b, 0)
    before, before_files, most = resident_bytes(), descriptors(), 0
    with zmq.Context() as context:
        for number in range(0, CASES, GROUP):
            seen, sockets = b.malformed, []
            for _ in range(GROUP):
                one = context.socket(zmq.PUSH)
                with_keys(net)(one)
                one.connect(b.endpoint)
                for frame in frames_after_login(rng):
                    one.send(frame)
                sockets.append(one)

            def read(seen: int = seen) -> bool:
                b.poll(0.01)
                return b.malformed >= seen + GROUP

            wait_until(read, what="the end of all sessions", timeout_s=20.0, poll_s=0.0)
            for one in sockets:
                one.close(linger=0)
            members_go_on(a, b, number + 1)
            most = max(most, resident_bytes())
    assert not a.wait_gone(0.0)
    assert not b.wait_gone(0.0)
    assert max(most, resident_bytes()) - before < GROWTH_BYTES, f"seed {SEED}"
    wait_until(
        lambda: descriptors() <= before_files + 8, what="the end of all sessions", timeout_s=20.0
    )


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.parametrize("encrypt", [True, False], ids=["tcp", "plain"])
def test_a_run_goes_on_with_every_bit(encrypt: bool, tmp_path: Path) -> None:
    """Of all sessions, a quarter is after a login."""
    rng = random.Random(SEED)
    with cluster(job(steps=HORIZON, stages=2, transport="tcp", encrypt=encrypt)) as run:
        run.start(3)
        run.wait_step(2)
        endpoints = [node.endpoint for node in run.state().nodes]
        net = Net("tcp" if encrypt else "plain", tmp_path)
        net.keys = RunKeys.from_dict(json.loads(run.store.documents()["keys"]))
        grown = [resident_bytes(pid) for pid in run.pids.values()]
        with zmq.Context() as context:
            for _ in range(0, CASES, GROUP):
                sockets: list[zmq.Socket[bytes]] = []
                for number in range(GROUP):
                    to = rng.choice(endpoints)
                    if number % 4:
                        with connected(to) as one, contextlib.suppress(OSError):
                            one.sendall(words_before_login(rng))
                        continue
                    member = context.socket(zmq.PUSH)
                    with_keys(net)(member)
                    member.connect(to)
                    for frame in frames_after_login(rng):
                        member.send(frame)
                    sockets.append(member)
                for member in sockets:
                    member.close(linger=1000)
        run.wait_step(max(run.losses()) + 2)
        grown = [
            resident_bytes(pid) - was for pid, was in zip(run.pids.values(), grown, strict=True)
        ]
        run.append(StopRequested(outcome=Outcome.STOPPED, reason="it has held"))
        state = run.finish()
        assert state.outcome is Outcome.STOPPED, run.report()
        assert not difference(run, len(run.losses())), f"seed {SEED}"
        assert all(node.status is not NodeStatus.GONE for node in state.nodes), run.report()
    assert max(grown) < GROWTH_BYTES, f"seed {SEED}"
