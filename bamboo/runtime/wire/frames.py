"""The format of a message on the wire: frames of header length, JSON header, raw bytes of tensors.

Nothing is unpickled. A header is bounded, parsed strictly, and must agree with the size of what
follows it; anything else is `Malformed`, and the receiver drops it.

A large message is cut between its tensors, and a large tensor into pieces, so that no frame is
larger than `MOST_FRAME_BYTES`. The reason is that a receiver allocates memory for a frame before it
knows its sender, and where the freed memory is in pieces of less than 100 MB, a frame of that size
takes new memory each time. The frames are not a ZeroMQ multipart message, although a header in
front of the bytes costs a copy: libzmq aborts the whole process (an assertion in session_base.cpp)
when a socket is closed after it has sent only a part of one.
"""

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, get_args

import torch

from bamboo.ids import NodeId
from bamboo.ports import Buffer, Delivered, MessageKey, MessageKind
from bamboo.runtime.wire.link import AT_ONCE, Due
from bamboo.topology.slots import Slot

FRAME_BYTES = 4 << 20
"""The most bytes of tensors in a frame; a larger tensor has frames of its own, one per piece."""
FRAME_TENSORS = 1 << 12
"""The most tensors in a frame: their shapes are in its header."""
MOST_FRAMES = 1 << 16
HEADER_LIMIT_BYTES = 1 << 20
MOST_DIMENSIONS = 64
"""The limit of torch."""
MOST_ELEMENTS = 1 << 48
ALIGNMENT_BYTES = 8
MOST_FRAME_BYTES = FRAME_BYTES + HEADER_LIMIT_BYTES + 2 * ALIGNMENT_BYTES
_LENGTH = struct.Struct("<I")
_DTYPES: dict[str, torch.dtype] = {
    "f4": torch.float32,
    "f2": torch.float16,
    "bf16": torch.bfloat16,
    "f8": torch.float64,
    "i8": torch.int64,
    "i4": torch.int32,
    "u1": torch.uint8,
    "bool": torch.bool,
}
SENDABLE = tuple(_DTYPES.values())
"""The types that a tensor may have to be sent."""
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_KINDS = frozenset(get_args(MessageKind))


class Malformed(ValueError):
    """Frames that no member would send, or that do not continue what came before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a message. Each has the whole header, but only the first has `meta`."""

    message: Delivered
    """With the tensors of this frame, or with the one of which it carries a piece (`piece_at`)."""
    due: Due
    number: int
    """The frame's number, from 0, of `count`."""
    count: int
    size_bytes: int
    """Size of the whole frame, which stays in memory as long as one of its tensors does."""
    piece_at: int | None = None
    """Where in its only tensor the frame's bytes begin, if the frame carries a piece."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """The bytes of a tensor that is larger than a frame, from `at` on."""

    of: Buffer
    at: int

    @property
    def data(self) -> memoryview:
        flat: memoryview = self.of.data.cast("B")
        return flat[self.at : self.at + FRAME_BYTES]


def to_buffer(tensor: torch.Tensor) -> Buffer:
    """The bytes of a tensor, without a copy when it is contiguous and on the CPU."""
    own = tensor.detach().contiguous().cpu()
    if own.dtype is torch.bfloat16:  # NumPy does not have bfloat16
        own = own.view(-1).view(torch.uint8)
    return Buffer(dtype=_NAMES[tensor.dtype], shape=tuple(tensor.shape), data=own.numpy().data)


def to_gradient(buffer: Buffer) -> torch.Tensor:
    """A tensor for operations that take each element by itself, so that no bit depends on where it
    lies. It is made of the buffer's own bytes, which it keeps alive, or of a copy where they are
    not aligned to its elements."""
    dtype = _DTYPES[buffer.dtype]
    if buffer.data.nbytes:
        lying = torch.frombuffer(buffer.data, dtype=dtype)
        if lying.data_ptr() % dtype.itemsize == 0:
            return lying.view(buffer.shape)
    return to_tensor(buffer)


def to_bytes(buffer: Buffer) -> torch.Tensor:
    """The bytes of a buffer, uint8, where they lie: only to be copied, not computed with."""
    if not buffer.data.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(buffer.data, dtype=torch.uint8)


def to_tensor(buffer: Buffer) -> torch.Tensor:
    """A new tensor of the buffer's bytes in torch's own memory, so that its alignment, and with it
    the bits of what is computed from it, do not depend on how it was received."""
    out = torch.empty(buffer.shape, dtype=_DTYPES[buffer.dtype])
    if out.numel():
        out.view(-1).view(torch.uint8).copy_(to_bytes(buffer))
    return out


def encode(
    key: MessageKey,
    *,
    sender: NodeId,
    generation: int,
    meta: Mapping[str, Any],
    buffers: Sequence[Buffer],
    due: Due = AT_ONCE,
) -> Iterator[bytes]:
    """The frames of a message, each made when it is asked for. `due`: when the virtual link
    delivers it."""
    cut = _cut(buffers)
    for number, inside in enumerate(cut):
        header = [
            key.kind,
            [key.to.pipeline, key.to.stage],
            [key.source.pipeline, key.source.stage],
            key.step,
            key.index,
            sender,
            generation,
            due,
            [number, len(cut)],
            {} if number else meta,
            [_entry(one) for one in inside],
        ]
        text = json.dumps(header).encode()
        # The blanks align the tensors as well as the frame itself is aligned (see `to_gradient`).
        text += b" " * (-(_LENGTH.size + len(text)) % ALIGNMENT_BYTES)
        # One pass over the tensors: zeroing memory first would write it twice.
        yield b"".join((_LENGTH.pack(len(text)), text, *(b.data for b in inside)))


def _entry(one: Buffer | _Piece) -> list[Any]:
    """The header's entry for a tensor in a frame, or for a piece of one."""
    if isinstance(one, _Piece):
        return [one.of.dtype, one.of.shape, one.at]
    return [one.dtype, one.shape]


def _cut(buffers: Sequence[Buffer]) -> list[list[Buffer | _Piece]]:
    """What goes into each frame; there is at least one frame, which may be empty."""
    out: list[list[Buffer | _Piece]] = [[]]
    room = FRAME_BYTES
    for buffer in buffers:
        size = buffer.data.nbytes
        if out[-1] and (size > room or len(out[-1]) == FRAME_TENSORS):
            out.append([])
            room = FRAME_BYTES
        if size > FRAME_BYTES:
            out[-1:] = [[_Piece(buffer, at)] for at in range(0, size, FRAME_BYTES)]
            room = -1  # no other tensor goes along, not even an empty one
            continue
        out[-1].append(buffer)
        room -= size
    return out


def decode(frame: memoryview) -> Frame:
    """Decode a frame. Raises Malformed."""
    length = _LENGTH.unpack_from(frame)[0] if frame.nbytes >= _LENGTH.size else 0
    if not 0 < length <= min(HEADER_LIMIT_BYTES, frame.nbytes - _LENGTH.size):
        raise Malformed("no header, or one beyond its limit")
    body = frame[_LENGTH.size + length :]
    try:
        kind, to, source, step, index, sender, generation, due, place, meta, shapes = json.loads(
            str(frame[_LENGTH.size : _LENGTH.size + length], "utf-8")
        )
        if kind not in _KINDS or not isinstance(meta, dict):
            raise Malformed(f"unknown kind {kind!r}")
        key = MessageKey(
            kind=kind,
            to=Slot(pipeline=int(to[0]), stage=int(to[1])),
            source=Slot(pipeline=int(source[0]), stage=int(source[1])),
            step=int(step),
            index=int(index),
        )
        arrives = Due(float(due[0]), float(due[1]))
        if not all(map(math.isfinite, arrives)):
            raise Malformed(f"due at {arrives}")
        number, count = int(place[0]), int(place[1])
        if not 0 <= number < count <= MOST_FRAMES:
            raise Malformed(f"frame {number} of {count}")
        if len(shapes) > FRAME_TENSORS:
            raise Malformed(f"{len(shapes)} tensors in a frame")
        piece_at = int(shapes[0][2]) if len(shapes) == 1 and len(shapes[0]) == 3 else None
        if piece_at is None:
            buffers = _buffers([(str(d), _shape(shape)) for d, shape in shapes], body)
        else:
            buffers = (_piece(str(shapes[0][0]), _shape(shapes[0][1]), piece_at, body),)
        message = Delivered(
            key=key,
            sender=NodeId(str(sender)),
            generation=int(generation),
            meta=meta,
            buffers=buffers,
        )
        return Frame(
            message=message,
            due=arrives,
            number=number,
            count=count,
            size_bytes=frame.nbytes,
            piece_at=piece_at,
        )
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise Malformed(str(error)) from error


def _shape(said: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(n) for n in said)


def _is_shape(shape: tuple[int, ...]) -> bool:
    """Whether a tensor may have this shape; one without elements has strides too, and they are
    bounded."""
    return (
        len(shape) <= MOST_DIMENSIONS
        and min(shape, default=0) >= 0
        and prod(max(size, 1) for size in shape) <= MOST_ELEMENTS
    )


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """The bytes of a tensor. Raises Malformed for a type or a shape that no tensor has."""
    if dtype not in _DTYPES or not _is_shape(shape):
        raise Malformed(f"unknown dtype {dtype!r} or shape {shape}")
    return prod(shape) * _DTYPES[dtype].itemsize


def _buffers(shapes: Sequence[tuple[str, tuple[int, ...]]], body: memoryview) -> tuple[Buffer, ...]:
    """The tensors that `body` consists of, one after the other and to the last byte."""
    out, at = [], 0
    for dtype, shape in shapes:
        size = size_of(dtype, shape)
        if at + size > body.nbytes:
            raise Malformed(f"{body.nbytes - at} bytes are no {dtype} of shape {shape}")
        out.append(Buffer(dtype=dtype, shape=shape, data=body[at : at + size]))
        at += size
    if at != body.nbytes:
        raise Malformed(f"{body.nbytes - at} bytes belong to no tensor")
    return tuple(out)


def _piece(dtype: str, shape: tuple[int, ...], at: int, body: memoryview) -> Buffer:
    """The piece of a tensor of this shape that `body` is, from `at` on: as much as fills a frame,
    or the rest of the tensor."""
    size = size_of(dtype, shape)
    if at < 0 or at % FRAME_BYTES or body.nbytes != min(FRAME_BYTES, size - at):
        raise Malformed(f"{body.nbytes} bytes at {at} are no piece of {dtype} of shape {shape}")
    return Buffer(dtype=dtype, shape=shape, data=body)
