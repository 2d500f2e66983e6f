"""A large message goes over in several frames, and is one message all the same."""

import threading
import time

import pytest
import torch
import zmq

from bamboo.ids import NodeId
from bamboo.ports import Buffer, MessageKind
from bamboo.runtime.wire.frames import FRAME_BYTES, encode, to_buffer, to_tensor
from bamboo.runtime.wire.link import VirtualLink
from bamboo.runtime.wire.transport import ZmqTransport
from tests.contracts.transport_net import (
    NEVER_S,
    A,
    B,
    C,
    Net,
    key,
    raw_sender,
    receive,
    steps,
    with_keys,
)

pytestmark = pytest.mark.timeout(60)
KINDS: tuple[MessageKind, ...] = ("ship", "shard")
"""Of each of the two connections."""
(SMALL,) = encode(key(3), sender=A, generation=1, meta={}, buffers=[])
"""Of the other connection than "ship"; one raw socket keeps the order of both."""


def large(seed: int, count: int = 3) -> list[torch.Tensor]:
    """Tensors of which each fills a frame, or almost."""
    return [
        torch.full((FRAME_BYTES // 4 - 7 * number,), float(seed + number))
        for number in range(count)
    ]


def frames(step: int, kind: MessageKind = "ship", *, sender: NodeId = A) -> list[bytes]:
    """A message of three frames as its sender would send it."""
    buffers = [to_buffer(tensor) for tensor in large(step)]
    return list(encode(key(step, kind), sender=sender, generation=1, meta={}, buffers=buffers))


def begun(sender: zmq.Socket[bytes], to: ZmqTransport) -> list[bytes]:
    """Send the first frame of a message, see it in, and give back the others."""
    first, *others = frames(1)
    sender.send(first)
    sender.send(SMALL)
    assert steps(receive(to, 1)) == [3]
    return others


def same(buffers: tuple[Buffer, ...], tensors: list[torch.Tensor]) -> bool:
    return len(buffers) == len(tensors) and all(
        torch.equal(to_tensor(buffer), tensor)
        for buffer, tensor in zip(buffers, tensors, strict=True)
    )


@pytest.fixture
def three(net: Net) -> tuple[ZmqTransport, ZmqTransport, ZmqTransport]:
    made = net.member(A), net.member(B), net.member(C)
    members = {A: made[0].endpoint, B: made[1].endpoint, C: made[2].endpoint}
    for one in made:
        one.reconfigure(generation=1, members=members)
    return made


def test_large_messages_of_both_connections_of_two_senders_arrive_whole_and_in_order(
    three: tuple[ZmqTransport, ZmqTransport, ZmqTransport],
) -> None:
    a, b, c = three
    for step in range(3):
        for sender in (a, b):
            for kind in KINDS:
                tensors = [to_buffer(tensor) for tensor in large(step, step + 1)]
                assert sender.send(C, key(step, kind), tensors, {"step": step})
    got = receive(c, 12)
    assert len(got) == 12
    for node in (A, B):
        for kind in KINDS:
            own = [m for m in got if m.sender == node and m.key.kind == kind]
            assert steps(own) == [0, 1, 2]
            for step, message in enumerate(own):
                assert message.meta == {"step": step}
                assert same(message.buffers, large(step, step + 1))
    assert c.malformed == 0
    body = sum(tensor.nbytes for step in range(3) for tensor in large(step, step + 1))
    assert 0 <= a.sent_bytes["ship"] - body < 5000, "the bytes of every frame are counted"


@pytest.mark.parametrize("order", [[0, 1], [1, 2], [0, 2], [0, 1, 1], [0, 2, 1]])
def test_a_message_that_lacks_a_frame_is_not_delivered(net: Net, order: list[int]) -> None:
    _, b = net.pair()
    with raw_sender(b, with_keys(net)) as sender:
        for number in order:
            sender.send(frames(1)[number])
        for frame in frames(2):
            sender.send(frame)
        (message,) = receive(b, 1)
        assert message.key.step == 2
        assert same(message.buffers, large(2))
        assert not b.poll(NEVER_S)


def test_the_frames_of_another_sender_and_of_the_other_connection_come_between(net: Net) -> None:
    a, b = net.pair()
    b.reconfigure(generation=1, members={A: a.endpoint, B: b.endpoint, C: "ipc:///nowhere/c"})
    streams = [frames(1), frames(1, "shard"), frames(1, sender=C)]
    with raw_sender(b, with_keys(net)) as sender:
        for number in range(3):
            for stream in streams:
                sender.send(stream[number])
        got = receive(b, 3)
    assert [(m.sender, m.key.kind) for m in got] == [(A, "ship"), (A, "shard"), (C, "ship")]
    assert all(same(message.buffers, large(1)) for message in got)
    assert b.malformed == 0


def test_a_member_that_leaves_takes_an_unfinished_message_along(net: Net) -> None:
    a, b = net.pair()
    with raw_sender(b, with_keys(net)) as sender:
        others = begun(sender, b)
        b.reconfigure(generation=2, members={B: b.endpoint})
        b.reconfigure(generation=3, members={A: a.endpoint, B: b.endpoint})
        for frame in others:
            sender.send(frame)
        sender.send(SMALL)
        assert steps(receive(b, 1)) == [3]
        assert not b.poll(NEVER_S)
    assert b.malformed == len(others)


def test_nobody_counts_the_rest_of_what_a_fenced_member_said(net: Net) -> None:
    a, b = net.pair()
    with raw_sender(b, with_keys(net)) as sender:
        others = begun(sender, b)
        b.reconfigure(generation=2, members={B: b.endpoint, C: a.endpoint})
        for frame in others:
            sender.send(frame)
        assert not b.poll(NEVER_S)
    assert b.malformed == 0


def test_a_tensor_larger_than_a_frame_comes_whole(net: Net) -> None:
    a, b = net.pair()
    tensors = [torch.rand(FRAME_BYTES * size // 40 + 3) for size in (25, 1, 10)]
    for step in range(2):
        assert a.send(B, key(step), [to_buffer(tensor) for tensor in tensors], {})
    got = receive(b, 2)
    assert all(same(message.buffers, tensors) for message in got)
    assert b.malformed == 0


def test_a_part_of_a_message_ends_no_wait(net: Net) -> None:
    _, b = net.pair()
    with raw_sender(b, with_keys(net)) as sender:
        sender.send(SMALL)
        assert steps(receive(b, 1)) == [3], "they are connected"
        for frame in frames(1)[:2]:
            sender.send(frame)
        start_s = time.monotonic()
        assert not b.poll(0.4)
        assert time.monotonic() - start_s >= 0.39
        waker = threading.Timer(0.05, b.wake)
        waker.start()
        assert not b.poll(20.0)
        assert time.monotonic() - start_s < 10.0
        waker.join()


def test_a_large_message_of_a_later_generation_waits_for_it(net: Net) -> None:
    a, b = net.pair()
    new = net.member(C)
    new.reconfigure(generation=2, members={B: b.endpoint})
    assert new.send(B, key(5, "ship"), [to_buffer(tensor) for tensor in large(5)], {})
    a.send(B, key(1), (), {})
    assert steps(receive(b, 1)) == [1]
    assert not b.poll(NEVER_S)
    b.reconfigure(generation=2, members={A: a.endpoint, B: b.endpoint, C: new.endpoint})
    (message,) = receive(b, 1)
    assert same(message.buffers, large(5))


def test_a_generation_that_comes_between_two_frames_takes_nothing_away(net: Net) -> None:
    a, b = net.pair()
    with raw_sender(b, with_keys(net)) as sender:
        others = begun(sender, b)
        b.reconfigure(generation=2, members={A: a.endpoint, B: b.endpoint})
        for frame in others:
            sender.send(frame)
        (message,) = receive(b, 1)
    assert same(message.buffers, large(1))


def test_a_virtual_link_holds_a_large_message_until_all_of_it_is_due(net: Net) -> None:
    # 12 MiB at 0.2 Gbps take half a second.
    a, b = net.pair(link=VirtualLink(gbps=0.2, latency_s=0.0))
    start_s = time.monotonic()
    a.send(B, key(1), [to_buffer(tensor) for tensor in large(1)], {})
    a.send(B, key(2), (), {})
    got = receive(b, 2)
    assert time.monotonic() - start_s >= 0.5
    assert steps(got) == [1, 2]
    assert same(got[0].buffers, large(1))
