"""State in chunks: the receiver asks for `window` chunks more than have come; the sender answers
one request at a time.

Rule: a chunk is not copied on the way unless it must be. The sender cuts it out of the tensors
where they lie, and the receiver puts its bytes directly where they belong.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

SMALL_CHUNK = 1 << 20
"""Bytes: used between nodes whose training messages wait behind a chunk."""
LARGE_CHUNK = 1 << 22
"""Used where nobody trains, or on a connection that carries little else: it moves half as many
bytes again in the same time as small chunks do (benchmarks/NOTES.md)."""


def bounds_of(chunk: int, whole: int, size: int) -> tuple[int, int] | None:
    """The bytes [start, stop) of a chunk of `size` bytes, of `whole` in all; None when there is no
    such chunk. The first chunk exists even when there are no bytes: it tells the receiver so."""
    start = chunk * size
    if chunk and start >= whole:
        return None
    return start, min(start + size, whole)


def as_bytes(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The bytes of each tensor, uncopied. The tensors are contiguous and of any types."""
    return [tensor.detach().view(-1).view(torch.uint8) for tensor in tensors]


def slice_of(tensors: Iterable[Tensor], start: int, stop: int) -> Tensor:
    """Elements [start, stop) of tensors that are numbered one after the other. It is a copy only
    when the elements belong to several tensors, and on the host when these lie there and on a
    device."""
    return _joined(pieces_of(tensors, start, stop))


def copy_of(tensors: Sequence[Tensor], start: int, stop: int) -> Tensor:
    """The same elements, copied once into one flat tensor on the host, wherever they lie: a plan
    counts no second copy of a stage in a device's memory."""
    out = torch.empty(stop - start, dtype=tensors[0].dtype)
    at = 0
    for piece in pieces_of(tensors, start, stop):
        out[at : at + piece.numel()].copy_(piece)
        at += piece.numel()
    return out


def pieces_of(tensors: Iterable[Tensor], start: int, stop: int) -> list[Tensor]:
    """Elements [start, stop) of tensors that are numbered one after the other, without a copy: a
    flat piece of each tensor that has any of them."""
    parts, before = [], 0
    for tensor in tensors:
        low, high = max(start - before, 0), min(stop - before, tensor.numel())
        if low < high:
            parts.append(tensor.reshape(-1)[low:high])
        before += tensor.numel()
    return parts


def put_together(pieces: Iterable[Tensor], shapes: Iterable[torch.Size]) -> list[Tensor]:
    """Build tensors of these shapes from the pieces that they were cut into. No piece belongs to
    two tensors. A tensor is copied only when it was cut."""
    rest, out = iter(pieces), []
    for shape in shapes:
        parts, missing = [], shape.numel()
        while missing:
            parts.append(next(rest))
            missing -= parts[-1].numel()
        out.append(_joined(parts).reshape(shape))
    return out


def _joined(parts: list[Tensor]) -> Tensor:
    if len({part.device for part in parts}) > 1:  # at most one chunk of a replica's state has both
        parts = [part.cpu() for part in parts]
    return parts[0] if len(parts) == 1 else torch.cat(parts or [torch.empty(0)])


class Copying:
    """State at a step boundary, sent in chunks while its owner trains on. It holds the tensors
    themselves until they are about to change, then a flat copy of what is still to be sent."""

    def __init__(self, size: int) -> None:
        self._size = size
        """Bytes of a chunk."""
        self._state: Sequence[Tensor] = ()
        """Bytes."""
        self.bytes = 0
        self._before = 0
        """Bytes before `_state`; they have been sent."""
        self._asked = 0
        """Chunks that were sent; they are asked for in order."""
        self.step = 0
        """The step that the state is before."""
        self.begun = False
        self._frozen = False
        self._early: list[int] = []

    def begin(self, tensors: Sequence[Tensor], step: int) -> list[int]:
        """Set the state; returns the chunks that were asked for before it was there."""
        self._state = as_bytes(tensors)
        self.step = step
        self.begun = True
        self.bytes = sum(tensor.nbytes for tensor in tensors)
        early, self._early = self._early, []
        return early

    def freeze(self) -> None:
        """Copy what is still to be sent: the tensors are about to change."""
        if self._state and not self._frozen:
            self._frozen = True
            self._before = min(self._asked * self._size, self.bytes)
            self._state = (copy_of(self._state, self._before, self.bytes),)

    @property
    def all_sent(self) -> bool:
        """Whether the last chunk was sent."""
        return self.begun and not self._state

    def chunk(self, number: int) -> Tensor | None:
        """The bytes of a chunk, uncopied; None where there is no such chunk, or no state yet."""
        if not self.begun:
            self._early.append(number)
            return None
        bounds = bounds_of(number, self.bytes, self._size)
        if bounds is None:
            return None
        self._asked = max(self._asked, number + 1)
        part = slice_of(self._state, *(bound - self._before for bound in bounds))
        if bounds[1] == self.bytes:
            self._state = ()
        return part


class Gathering:
    """Tensors, one after the other, whose first `window` chunks of `size` bytes have been asked
    for. The chunks are written into `into`, whose tensors are contiguous and of any types."""

    def __init__(self, window: int, into: Sequence[Tensor], size: int) -> None:
        self._asked = window
        self._size = size
        self._into = as_bytes(tensor for tensor in into if tensor.numel())
        self._starts = [0, *accumulate(tensor.numel() for tensor in self._into)]
        self._chunks = max(1, -(-self._starts[-1] // size))
        self._missing = set(range(self._chunks))

    def take(self, chunk: int, part: Tensor, *, whole: int) -> bool:
        """Store a chunk of a state of `whole` bytes; False when it is not wanted because it came
        before. Raises ValueError when the state has another size."""
        if chunk not in self._missing:
            return False
        mine = self._starts[-1]
        bounds = bounds_of(chunk, mine, self._size)
        if bounds is None or whole != mine:
            raise ValueError(f"state of {whole} bytes came, not of {mine}")
        (data,) = as_bytes([part])
        if data.numel() != bounds[1] - bounds[0]:
            raise ValueError(f"chunk {chunk} has {data.numel()} bytes, not {bounds[1] - bounds[0]}")
        self._put(data, bounds[0])
        self._missing.remove(chunk)
        return True

    def _put(self, data: Tensor, at: int) -> None:
        number, done = bisect_right(self._starts, at) - 1, 0
        while done < data.numel():
            low = at + done - self._starts[number]
            target = self._into[number][low : low + data.numel() - done]
            target.copy_(data[done : done + target.numel()])
            done += target.numel()
            number += 1

    def next_chunk(self) -> int | None:
        """The next chunk to ask for; None when all have been asked for."""
        if self._asked >= self._chunks:
            return None
        self._asked += 1
        return self._asked - 1

    @property
    def missing(self) -> int:
        """How many chunks have not come yet."""
        return len(self._missing)

    @property
    def whole(self) -> bool:
        """Whether all chunks have come."""
        return not self._missing
