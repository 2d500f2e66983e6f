"""Puts messages together from their frames, and tensors from their pieces: a message is delivered
whole or not at all. A tensor that came in pieces is copied once, into memory of its own."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from bamboo.ids import NodeId
from bamboo.ports import YIELDING, Buffer, Delivered
from bamboo.runtime.wire.frames import Frame, Malformed, size_of

CONNECTIONS = 2
"""Connections of one sender and lane that are read at once: its earlier one and its present one."""


@dataclass(slots=True, kw_only=True)
class _Unfinished:
    """The part of one message that has arrived."""

    first: Frame
    frames: int = 0
    buffers: list[Buffer] = field(default_factory=list)
    """The last of them may still lack pieces."""
    size_bytes: int = 0
    filled: int | None = None
    """How many bytes of the last buffer have arrived; None: it is complete."""

    def add(self, frame: Frame, limit_bytes: int) -> None:
        """Add the next frame. Raises Malformed."""
        self.frames += 1
        self.size_bytes += frame.size_bytes
        if self.size_bytes > limit_bytes:
            raise Malformed(f"a message of {self.size_bytes} bytes or more is beyond the limit")
        if (frame.piece_at or None) != self.filled:
            raise Malformed(f"piece {frame.piece_at} does not go on from byte {self.filled}")
        if frame.piece_at is None:
            self.buffers += frame.message.buffers
            return
        (piece,) = frame.message.buffers
        if frame.piece_at == 0:
            self._begin(piece, limit_bytes)
        whole = self.buffers[-1]
        if (piece.dtype, piece.shape) != (whole.dtype, whole.shape):
            raise Malformed(f"a piece of {piece.shape} does not belong to {whole.shape}")
        stop = frame.piece_at + piece.data.nbytes
        whole.data[frame.piece_at : stop] = piece.data
        self.filled = stop if stop < whole.data.nbytes else None

    def _begin(self, piece: Buffer, limit_bytes: int) -> None:
        """Allocate memory for a tensor whose first piece this is."""
        size = size_of(piece.dtype, piece.shape)
        if size > limit_bytes:
            raise Malformed(f"a tensor of {size} bytes is beyond the limit")
        data = torch.empty(size, dtype=torch.uint8).numpy().data
        self.buffers.append(Buffer(dtype=piece.dtype, shape=piece.shape, data=data))


class Assembly:
    """The messages that are not complete yet, none larger than `limit_bytes`. A sender has one on
    each connection, where its frames come one after the other. It has two connections, and a second
    two when it was dropped and is a member again in a later generation."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._unfinished: dict[tuple[NodeId, bool], dict[int, _Unfinished]] = defaultdict(dict)
        """Per sender and lane, by generation."""

    def take(self, frame: Frame) -> Delivered | None:
        """Add a frame; returns the message that it completes, if any. The first frame of a message
        starts it over. Raises Malformed for a frame that is not the next one or exceeds the limit;
        the unfinished message that the frame belongs to is then forgotten."""
        came = frame.message
        of_sender = self._unfinished[came.sender, came.key.kind in YIELDING]
        begun = of_sender.pop(came.generation, None)
        if frame.count == 1 and frame.piece_at is None:
            return came
        if frame.number == 0:
            begun = _Unfinished(first=frame)
        if begun is None or frame.number != begun.frames or not _belong(frame, begun.first):
            raise Malformed(f"frame {frame.number} of {frame.count} is not the next one")
        begun.add(frame, self._limit_bytes)
        if begun.frames < frame.count:
            of_sender[came.generation] = begun
            if len(of_sender) > CONNECTIONS:
                del of_sender[min(of_sender)]
            return None
        if begun.filled is not None:
            raise Malformed(f"the last tensor ends at byte {begun.filled}")
        return replace(begun.first.message, buffers=tuple(begun.buffers))

    def keep(self, hears: Callable[[Delivered], bool]) -> None:
        """Forget the unfinished messages of senders that `hears` does not accept any more."""
        for of_sender in self._unfinished.values():
            for generation, begun in list(of_sender.items()):
                if not hears(begun.first.message):
                    del of_sender[generation]


def _belong(frame: Frame, first: Frame) -> bool:
    """Whether both frames belong to one message."""
    one, other = frame.message.key, first.message.key
    return (one, frame.due, frame.count) == (other, first.due, first.count)
