"""Flat state in chunks, so that letters of the step never wait behind a whole layer.

Rule: who receives asks, `window` chunks ahead of what has come; who sends answers one at a time.
"""

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 18
"""1 MiB of float32."""


def bounds_of(chunk: int, elements: int) -> tuple[int, int] | None:
    """The elements [start, stop) of a chunk; None when there is no such chunk. The first one is
    there also when there are no elements: it says so."""
    start = chunk * CHUNK_ELEMENTS
    if chunk and start >= elements:
        return None
    return start, min(start + CHUNK_ELEMENTS, elements)


class Gathering:
    """A flat tensor of which the first `window` chunks have been asked for."""

    def __init__(self, window: int) -> None:
        self.flat: Tensor | None = None
        self._asked = window
        self._chunks = 0
        self._missing: set[int] = set()

    def take(self, chunk: int, part: Tensor, *, elements: int) -> bool:
        """A chunk of a tensor of so many elements has come; False when it is not wanted (twice)."""
        if self.flat is None:
            self.flat = torch.empty(elements)
            self._chunks = max(1, -(-elements // CHUNK_ELEMENTS))
            self._missing = set(range(self._chunks))
        if chunk not in self._missing:
            return False
        start = chunk * CHUNK_ELEMENTS
        self.flat[start : start + CHUNK_ELEMENTS] = part
        self._missing.remove(chunk)
        return True

    def next_chunk(self) -> int | None:
        """The next one to ask for; None when all are asked for."""
        if self._asked >= self._chunks:
            return None
        self._asked += 1
        return self._asked - 1

    @property
    def whole(self) -> bool:
        """Whether all of it has come."""
        return self.flat is not None and not self._missing
