"""Who does not belong gets nothing and stops nothing: bad frames, too large ones, strangers."""

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import zmq

from bamboo.errors import InputError
from bamboo.ports import Buffer
from bamboo.runtime.keys import RunKeys
from bamboo.runtime.transport import ZmqTransport
from bamboo.runtime.wire import encode, to_buffer
from tests.contracts.transport_net import (
    KEYS,
    NEVER_S,
    A,
    B,
    Net,
    gone,
    key,
    raw_sender,
    receive,
    steps,
    with_keys,
)

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
    a, b = net.pair(frame_limit_bytes=1 << 16)
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
