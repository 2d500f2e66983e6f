"""Messages are put together of their frames, whole or not at all, whoever else sends meanwhile."""

from contextlib import suppress
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.ids import NodeId
from bamboo.ports import Buffer, Delivered, MessageKey, MessageKind
from bamboo.runtime.wire import frames as wire
from bamboo.runtime.wire.assembly import Assembly
from bamboo.runtime.wire.frames import Frame, Malformed
from bamboo.runtime.wire.link import Due
from bamboo.topology.slots import Slot

A, B = NodeId("a"), NodeId("b")
HERE = Slot(pipeline=0, stage=0)
SIZE_BYTES = 100
LIMIT = 10 * SIZE_BYTES


def frames(
    count: int, step: int = 1, kind: MessageKind = "ship", sender: NodeId = A
) -> list[Frame]:
    """A message of `count` frames, each with one tensor: its number."""
    return [
        Frame(
            message=Delivered(
                key=MessageKey(kind=kind, to=HERE, source=HERE, step=step),
                sender=sender,
                generation=1,
                meta={} if number else {"norm": step},
                buffers=(Buffer(dtype="f4", shape=(1,), data=memoryview(bytes([number] * 4))),),
            ),
            due=Due(1.0, 0.5),
            number=number,
            count=count,
            size_bytes=SIZE_BYTES,
        )
        for number in range(count)
    ]


def numbers(message: Delivered) -> list[int]:
    return [buffer.data[0] for buffer in message.buffers]


@given(st.data())
def test_every_message_is_whole_however_the_connections_take_turns(data: st.DataObject) -> None:
    connections = [(A, "ship"), (A, "shard"), (B, "ship"), (B, "act")]
    waiting = {
        (sender, kind): [
            frame
            for step in range(data.draw(st.integers(0, 3)))
            for frame in frames(data.draw(st.integers(1, 4)), step, kind, sender)
        ]
        for sender, kind in connections
    }
    sent = {connection: list(queue) for connection, queue in waiting.items()}
    assembly = Assembly(LIMIT)
    came: dict[tuple[str, str], list[Delivered]] = {connection: [] for connection in waiting}
    while any(waiting.values()):
        turn = data.draw(st.sampled_from([c for c, queue in waiting.items() if queue]))
        frame = waiting[turn].pop(0)
        message = assembly.take(frame)
        assert (message is not None) is (frame.number == frame.count - 1)
        if message is not None:
            assert numbers(message) == list(range(frame.count))
            assert message.meta == {"norm": message.key.step}
            came[turn].append(message)
    for connection, messages in came.items():
        ends = [f.message.key for f in sent[connection] if f.number == f.count - 1]
        assert [m.key for m in messages] == ends


@pytest.mark.parametrize(
    ("order", "malformed"),
    [
        ([1], 1),
        ([2, 1], 2),
        ([0, 2], 1),
        ([0, 1, 1, 2], 2),
        ([0, 0, 2], 1),
        ([0, 2, 1], 2),
        ([0, 1, 1], 1),
    ],
)
def test_any_but_the_next_frame_is_malformed_and_ends_its_message(
    order: list[int], malformed: int
) -> None:
    assembly, refused = Assembly(LIMIT), 0
    for frame in [frames(3)[number] for number in order]:
        try:
            assert assembly.take(frame) is None
        except Malformed:
            refused += 1
    assert refused == malformed
    whole = [assembly.take(frame) for frame in frames(2, step=2)]
    assert whole[0] is None
    assert whole[1] is not None
    assert numbers(whole[1]) == [0, 1]


def test_the_first_frame_begins_anew() -> None:
    assembly = Assembly(LIMIT)
    for frame in (*frames(3, step=1)[:2], *frames(3, step=2)[:2]):
        assert assembly.take(frame) is None
    whole = assembly.take(frames(3, step=2)[2])
    assert whole is not None
    assert (whole.key.step, numbers(whole)) == (2, [0, 1, 2])
    assembly.take(frames(2, step=4)[0])
    assert assembly.take(frames(1, step=5)[0]) is not None
    with pytest.raises(Malformed):
        assembly.take(frames(2, step=4)[1])


def test_frames_of_two_messages_are_not_put_together() -> None:
    second = frames(2)[1]
    others = [
        replace(second, count=3),
        replace(second, due=Due(2.0, 0.5)),
        replace(second, message=replace(second.message, generation=2)),
        replace(second, message=replace(second.message, sender=B)),
        frames(2, step=2)[1],
    ]
    for other in others:
        assembly = Assembly(LIMIT)
        assembly.take(frames(2)[0])
        with pytest.raises(Malformed, match="not the next one"):
            assembly.take(other)


def pieces(*sizes: int, step: int = 1) -> list[Frame]:
    """The frames of a message with tensors of so many bytes, cut at 8 bytes."""
    buffers = [
        Buffer(
            dtype="f4",
            shape=(size // 4,),
            data=memoryview(bytes((number * 50 + at) % 256 for at in range(size))),
        )
        for number, size in enumerate(sizes)
    ]
    key = MessageKey(kind="ship", to=HERE, source=HERE, step=step)
    with patch.object(wire, "FRAME_BYTES", 8):
        sent = wire.encode(key, sender=A, generation=1, meta={}, buffers=buffers)
        return [wire.decode(memoryview(frame)) for frame in sent]


def contents(message: Delivered) -> list[bytes]:
    return [bytes(buffer.data) for buffer in message.buffers]


@given(st.lists(st.integers(0, 10).map(lambda words: 4 * words), max_size=5))
def test_tensors_of_any_sizes_come_whole(sizes: list[int]) -> None:
    assembly = Assembly(1 << 20)
    *before, whole = [assembly.take(frame) for frame in pieces(*sizes)]
    assert not any(before)
    assert whole is not None
    assert [len(data) for data in contents(whole)] == sizes
    for number, data in enumerate(contents(whole)):
        assert data == bytes((number * 50 + at) % 256 for at in range(len(data)))


@given(st.data())
def test_pieces_in_any_other_order_are_no_message(data: st.DataObject) -> None:
    """Nobody sends them so; then what is delivered is still made of whole tensors."""
    sent = pieces(4, 20, 24, 8)
    order = data.draw(st.lists(st.sampled_from(sent), max_size=12))
    assembly = Assembly(1 << 20)
    for frame in (*order, *sent):
        with suppress(Malformed):
            if (whole := assembly.take(frame)) is not None:
                last = whole
    assert [len(one) for one in contents(last)] == [4, 20, 24, 8]


def test_a_tensor_of_another_message_gives_no_piece() -> None:
    ours, others = pieces(24), pieces(28)
    assembly = Assembly(1 << 20)
    assembly.take(ours[0])
    with pytest.raises(Malformed):
        assembly.take(replace(others[1], count=3))


def test_no_memory_is_taken_for_a_tensor_beyond_the_limit() -> None:
    (first, *_) = pieces(24)
    (endless,) = (replace(b, shape=(1 << 40,)) for b in first.message.buffers)
    with pytest.raises(Malformed, match="a tensor of 4398046511104 bytes is beyond the limit"):
        Assembly(1 << 20).take(replace(first, message=replace(first.message, buffers=(endless,))))


def test_a_message_does_not_end_within_a_tensor() -> None:
    assembly = Assembly(1 << 20)
    first, second, _ = (replace(frame, count=2) for frame in pieces(24))
    assert assembly.take(first) is None
    with pytest.raises(Malformed, match="ends at byte 16"):
        assembly.take(second)


def test_what_is_not_whole_goes_with_who_is_not_heard_any_more() -> None:
    assembly = Assembly(LIMIT)
    for sender in (A, B):
        assembly.take(frames(2, sender=sender)[0])
    assembly.keep(lambda message: message.sender == B)
    with pytest.raises(Malformed):
        assembly.take(frames(2, sender=A)[1])
    assert assembly.take(frames(2, sender=B)[1]) is not None


def test_a_sender_that_is_a_member_again_ends_nothing_that_is_still_on_its_way() -> None:
    """Its old connection and its new one are read in turn."""
    new = [replace(f, message=replace(f.message, generation=2)) for f in frames(3, step=2)]
    assembly = Assembly(LIMIT)
    turns = [one for pair in zip(frames(3), new, strict=True) for one in pair]
    came = [message for frame in turns if (message := assembly.take(frame)) is not None]
    assert [(m.key.step, numbers(m)) for m in came] == [(1, [0, 1, 2]), (2, [0, 1, 2])]


def test_a_message_beyond_the_limit_is_refused_while_it_comes() -> None:
    assembly = Assembly(limit_bytes=2 * SIZE_BYTES)
    whole = [assembly.take(frame) for frame in frames(2)]
    assert whole[1] is not None
    first, second, third, fourth = frames(4)
    assert assembly.take(first) is assembly.take(second) is None
    with pytest.raises(Malformed, match="a message of 300 bytes or more is beyond the limit"):
        assembly.take(third)
    with pytest.raises(Malformed):
        assembly.take(fourth)


def test_halves_of_generations_that_somebody_made_up_do_not_stay() -> None:
    assembly = Assembly(LIMIT)

    def of(generation: int) -> list[Frame]:
        return [replace(f, message=replace(f.message, generation=generation)) for f in frames(2)]

    for generation in range(5, 9):
        assert assembly.take(of(generation)[0]) is None
    for gone in (5, 6):
        with pytest.raises(Malformed):
            assembly.take(of(gone)[1])
    for there in (7, 8):
        assert assembly.take(of(there)[1]) is not None
