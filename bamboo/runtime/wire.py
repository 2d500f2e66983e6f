"""How a message looks on the wire: one JSON header frame, then one frame of raw bytes a tensor.

Nothing is unpickled. A header is bounded, parsed strictly, and must agree with the sizes of the
frames behind it; anything else is `Malformed` and the receiver drops it.
"""

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, get_args

import torch

from bamboo.ids import NodeId
from bamboo.ports import Buffer, Delivered, MessageKey, MessageKind
from bamboo.topology.slots import Slot

HEADER_LIMIT_BYTES = 1 << 20
_DTYPES: dict[str, torch.dtype] = {
    "f4": torch.float32,
    "f8": torch.float64,
    "i8": torch.int64,
    "bf16": torch.bfloat16,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_KINDS = frozenset(get_args(MessageKind))


class Malformed(ValueError):
    """Frames that no member of ours would send."""


def to_buffer(tensor: torch.Tensor) -> Buffer:
    """The bytes of a tensor, without a copy when it is contiguous and on the CPU."""
    flat = tensor.detach().contiguous().cpu().view(-1).view(torch.uint8)
    return Buffer(dtype=_NAMES[tensor.dtype], shape=tuple(tensor.shape), data=flat.numpy().data)


def to_tensor(buffer: Buffer) -> torch.Tensor:
    """A fresh tensor of the buffer's bytes: torch's own memory, so that its alignment, and with
    it the bits of what is computed from it, do not depend on how it came here."""
    out = torch.empty(buffer.shape, dtype=_DTYPES[buffer.dtype])
    if out.numel():
        raw = torch.frombuffer(buffer.data, dtype=torch.uint8)
        out.view(-1).view(torch.uint8).copy_(raw)
    return out


def encode(
    key: MessageKey,
    *,
    sender: NodeId,
    generation: int,
    meta: Mapping[str, Any],
    buffers: Sequence[Buffer],
    due_s: float = 0.0,
) -> list[Any]:
    """The frames of a message. `due_s`: monotonic time before which a virtual link holds it."""
    header = [
        key.kind,
        [key.to.pipeline, key.to.stage],
        [key.source.pipeline, key.source.stage],
        key.step,
        key.index,
        sender,
        generation,
        due_s,
        meta,
        [[b.dtype, b.shape] for b in buffers],
    ]
    return [json.dumps(header).encode(), *(b.data for b in buffers)]


def decode(frames: Sequence[memoryview]) -> tuple[Delivered, float]:
    """The message in `frames` and its due time. Raises Malformed."""
    if not frames or len(frames[0]) > HEADER_LIMIT_BYTES:
        raise Malformed("no header, or one beyond its limit")
    try:
        kind, to, source, step, index, sender, generation, due_s, meta, shapes = json.loads(
            bytes(frames[0])
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
        buffers = tuple(
            _checked(str(dtype), tuple(int(n) for n in shape), frame)
            for (dtype, shape), frame in zip(shapes, frames[1:], strict=True)
        )
        return (
            Delivered(
                key=key,
                sender=NodeId(str(sender)),
                generation=int(generation),
                meta=meta,
                buffers=buffers,
            ),
            float(due_s),
        )
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise Malformed(str(error)) from error


def _checked(dtype: str, shape: tuple[int, ...], frame: memoryview) -> Buffer:
    if dtype not in _DTYPES or min(shape, default=0) < 0:
        raise Malformed(f"unknown dtype {dtype!r} or shape {shape}")
    if prod(shape) * _DTYPES[dtype].itemsize != frame.nbytes:
        raise Malformed(f"{frame.nbytes} bytes are no {dtype} of shape {shape}")
    return Buffer(dtype=dtype, shape=shape, data=frame)
