"""The wire format: what goes in comes out, bit for bit; everything else is Malformed."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bamboo.ids import NodeId
from bamboo.ports import Buffer, Delivered, MessageKey
from bamboo.runtime.wire.frames import (
    ALIGNMENT_BYTES,
    FRAME_BYTES,
    FRAME_TENSORS,
    MOST_FRAMES,
    Malformed,
    decode,
    encode,
    to_buffer,
    to_gradient,
    to_tensor,
)
from bamboo.runtime.wire.link import Due
from bamboo.topology.slots import Slot

A = NodeId("a")
SLOTS = st.builds(Slot, pipeline=st.integers(0, 99), stage=st.integers(0, 99))
KEYS = st.builds(
    MessageKey,
    kind=st.sampled_from(["act", "grad", "partial", "shard", "tie", "squares", "norm", "ship"]),
    to=SLOTS,
    source=SLOTS,
    step=st.integers(0, 10**9),
    index=st.integers(0, 10**9),
)
SHAPES = st.lists(st.integers(0, 4), max_size=4)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bfloat16])
META = st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False) | st.integers(0, 99))


def over_the_wire(frame: bytes | bytearray) -> memoryview:
    """The frame as its receiver finds it: other memory, with no alignment to speak of."""
    return memoryview(bytearray(b"!" + bytes(frame)))[1:]


def framed(header: Any, body: bytes) -> memoryview:
    """A frame with this header, whatever it is."""
    text = json.dumps(header).encode()
    return over_the_wire(len(text).to_bytes(4, "little") + text + body)


def filled(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    raw = torch.randint(0, 256, (math.prod(shape) * 8,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype)[: math.prod(shape)].clone().reshape(list(shape))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and bytes(to_buffer(a).data) == bytes(to_buffer(b).data)
    )


@given(KEYS, st.lists(st.tuples(SHAPES, DTYPES), max_size=3), META, st.integers(0, 10**6))
def test_what_goes_in_comes_out(
    key: MessageKey,
    shapes: list[tuple[list[int], torch.dtype]],
    meta: dict[str, float],
    generation: int,
) -> None:
    tensors = [filled(shape, dtype) for shape, dtype in shapes]
    (frame,) = encode(
        key,
        sender=A,
        generation=generation,
        meta=meta,
        buffers=[to_buffer(t) for t in tensors],
        due=Due(2.5, 0.5),
    )
    came = decode(over_the_wire(frame))
    message, due = came.message, came.due
    assert (came.number, came.count) == (0, 1)
    assert (message.key, message.sender, message.generation) == (key, A, generation)
    assert (message.meta, due) == (meta, (2.5, 0.5))
    got = [to_tensor(b) for b in message.buffers]
    assert len(got) == len(tensors)
    assert all(same_bits(x, y) for x, y in zip(tensors, got, strict=True))


@given(st.floats(width=64, allow_nan=False))
def test_numbers_in_meta_keep_every_bit(number: float) -> None:
    key = MessageKey(
        kind="norm", to=Slot(pipeline=0, stage=0), source=Slot(pipeline=0, stage=1), step=1
    )
    (frame,) = encode(key, sender=A, generation=1, meta={"x": number}, buffers=[])
    assert decode(over_the_wire(frame)).message.meta["x"].hex() == number.hex()


def test_a_tensor_that_is_no_plain_memory_travels_by_value() -> None:
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    for odd in (base.t(), base[:, 1::2], base[1:, 1:], base.clone().requires_grad_()):
        assert torch.equal(to_tensor(to_buffer(odd)), odd.detach())


def test_a_received_tensor_is_its_own_memory() -> None:
    frame = bytearray(8)
    buffer = to_buffer(torch.zeros(2))
    received = type(buffer)(dtype=buffer.dtype, shape=buffer.shape, data=memoryview(frame))
    tensor = to_tensor(received)
    frame[:] = b"\xff" * 8
    assert torch.equal(tensor, torch.zeros(2))


@given(KEYS, META, st.integers(0, 8), SHAPES, DTYPES)
def test_a_gradient_lies_where_it_came_if_it_lies_well(
    key: MessageKey, meta: dict[str, Any], off: int, shape: list[int], dtype: torch.dtype
) -> None:
    sent = filled(shape, dtype)
    (frame,) = encode(key, sender=A, generation=1, meta=meta, buffers=[to_buffer(sent)])
    start = len(frame) - sent.nbytes
    assert start % ALIGNMENT_BYTES == 0
    room = torch.empty(len(frame) + off, dtype=torch.uint8)[off:]  # torch's memory is aligned
    room.copy_(torch.frombuffer(bytearray(frame), dtype=torch.uint8))
    message = decode(memoryview(room.numpy())).message
    found = to_gradient(message.buffers[0])
    assert same_bits(found, sent)
    if sent.nbytes:
        here = found.data_ptr() == room.data_ptr() + start
        assert here is (off % dtype.itemsize == 0)


@given(st.binary(max_size=200))
def test_random_bytes_are_malformed(frame: bytes) -> None:
    with pytest.raises(Malformed):
        decode(memoryview(frame))


@given(st.data())
def test_a_frame_cut_anywhere_is_malformed(data: st.DataObject) -> None:
    whole = bytes(framed(HEADER, b"12345678"))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(Malformed):
        decode(memoryview(whole[:cut]))


HEADER = ["act", [0, 1], [0, 0], 5, 3, "a", 1, [0.0, 0.0], [1, 2], {"x": 1}, [["f4", [2]]]]
ODD = st.sampled_from(
    [None, -1, 1.5, 1e400, "x", "", [], {}, [[]], [0], [["f4", [3]]], [["f4", [-2]]], True]
) | st.integers(-(10**30), 10**30)


@given(st.integers(0, len(HEADER) - 1), ODD, st.sampled_from([b"", b"12345678"]))
def test_an_odd_header_is_malformed_or_harmless(place: int, value: Any, body: bytes) -> None:
    header = list(HEADER)
    header[place] = value
    try:
        frame = decode(framed(header, body))
    except Malformed:
        return
    assert isinstance(frame.message, Delivered)
    assert all(map(math.isfinite, frame.due))
    assert 0 <= frame.number < frame.count
    assert len(bytes(body)) == sum(to_tensor(b).numel() * 4 for b in frame.message.buffers)


@pytest.mark.parametrize("cut", range(len(HEADER)))
def test_a_header_that_lacks_something_is_malformed(cut: int) -> None:
    header = HEADER[:cut] + HEADER[cut + 1 :]
    with pytest.raises(Malformed):
        decode(framed(header, b"12345678"))


@pytest.mark.parametrize(
    "shape", [[0, 1 << 63], [0, 1 << 62, 4], [1 << 40, 0, 1 << 40], [0] * 65, [1] * 65]
)
def test_an_empty_tensor_of_an_endless_shape_is_malformed(shape: list[int]) -> None:
    header = [*HEADER[:-1], [["f4", [1]], ["i8", shape]]]
    body = bytes(4 + 8 * (0 not in shape))
    with pytest.raises(Malformed, match="shape"):
        decode(framed(header, body))


def test_the_intact_header_is_fine() -> None:
    message = decode(framed(HEADER, b"12345678")).message
    assert message.key.index == 3


def buffer_of(size_bytes: int) -> Buffer:
    return Buffer(dtype="f4", shape=(size_bytes // 4,), data=memoryview(bytes(size_bytes)))


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([FRAME_BYTES], [1]),
        ([FRAME_BYTES, 0, 4], [2, 1]),
        ([4, FRAME_BYTES, 4], [1, 1, 1]),
        ([FRAME_BYTES - 4, 4, 4, FRAME_BYTES + 4, 0], [2, 1, 1, 1, 1]),
        ([0] * (FRAME_TENSORS + 1), [FRAME_TENSORS, 1]),
    ],
)
def test_a_large_message_is_cut_between_its_tensors(sizes: list[int], counts: list[int]) -> None:
    key = MessageKey(
        kind="ship", to=Slot(pipeline=0, stage=0), source=Slot(pipeline=0, stage=0), step=1
    )
    frames = [
        decode(over_the_wire(frame))
        for frame in encode(
            key, sender=A, generation=1, meta={"x": 1}, buffers=[buffer_of(n) for n in sizes]
        )
    ]
    assert [len(one.message.buffers) for one in frames] == counts
    assert [(one.number, one.count) for one in frames] == [
        (number, len(counts)) for number in range(len(counts))
    ]
    assert [one.message.meta for one in frames] == [{"x": 1}] + [{}] * (len(counts) - 1)


@pytest.mark.parametrize("place", [[-1, 1], [1, 1], [2, 1], [0, 0], [0, MOST_FRAMES + 1], [0]])
def test_a_frame_of_no_place_is_malformed(place: list[int]) -> None:
    header = [*HEADER[:8], place, *HEADER[9:]]
    with pytest.raises(Malformed):
        decode(framed(header, b"12345678"))


def test_a_frame_of_more_tensors_than_anybody_sends_is_malformed() -> None:
    header = [*HEADER[:-1], [["f4", [0]]] * (FRAME_TENSORS + 1)]
    with pytest.raises(Malformed, match="4097 tensors"):
        decode(framed(header, b""))
    assert len(decode(framed([*header[:-1], header[-1][1:]], b"")).message.buffers) == FRAME_TENSORS


PIECE = ["f4", [FRAME_BYTES // 4 + 2], FRAME_BYTES]


def test_the_last_piece_of_a_tensor_says_where_it_lies() -> None:
    assert decode(framed([*HEADER[:-1], [PIECE]], b"12345678")).piece_at == FRAME_BYTES


@pytest.mark.parametrize(
    "tensors",
    [
        [[*PIECE[:2], 0]],
        [[*PIECE[:2], 4]],
        [[*PIECE[:2], -FRAME_BYTES]],
        [[*PIECE[:2], 2 * FRAME_BYTES]],
        [[*PIECE[:2], None]],
        [["f4", [FRAME_BYTES // 4 + 1], FRAME_BYTES]],
        [["f4", [FRAME_BYTES // 4 + 3], FRAME_BYTES]],
        [["f4", [1 << 60], FRAME_BYTES]],
        [["o4", PIECE[1], FRAME_BYTES]],
        [PIECE, ["f4", [0]]],
        [["f4", [0]], PIECE],
        [PIECE, PIECE],
    ],
    ids=range(12),
)
def test_a_piece_of_no_tensor_is_malformed(tensors: list[Any]) -> None:
    with pytest.raises(Malformed):
        decode(framed([*HEADER[:-1], tensors], b"12345678"))


def test_a_frame_knows_how_much_memory_it_keeps() -> None:
    frame = framed(HEADER, b"12345678")
    assert decode(frame).size_bytes == frame.nbytes
