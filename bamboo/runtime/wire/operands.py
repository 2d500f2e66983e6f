"""A tensor as an operand of a matrix product: its numbers, and how they lie in memory.

Rule: a product of the same numbers that lie in another way may differ in its last bit. So what is
sent are the numbers, each once, and beside them shape, strides and place within an aligned piece of
memory; the receiver lays them out in that way again, without a copy where they lie so already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from bamboo.models.running import ALIGNMENT_BYTES

MOST_DIMENSIONS = 64
"""The limit of torch."""
LOOSEST = 4096
"""How many times as much memory as its numbers an operand may take at most: rows of a wider tensor
lie apart. It bounds what a receiver allocates."""
TYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """Numbers and their places. Raises ValueError for what is no such tensor."""

    numbers: Tensor
    """All numbers that differ in their place, in order: one dimension, contiguous."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements; 0 where one number stands for all of a dimension."""
    offset: int
    """Elements from an aligned place to the first number."""

    def __post_init__(self) -> None:
        shape, strides = self.shape, self.strides
        numbers = self.numbers
        if numbers.dtype not in TYPES or numbers.dim() != 1 or not numbers.is_contiguous():
            raise ValueError(f"{numbers.dtype} {tuple(numbers.shape)} are no operand's numbers")
        if len(shape) != len(strides) or not 0 < len(shape) <= MOST_DIMENSIONS:
            raise ValueError(f"an operand of shape {shape} with strides {strides}")
        if prod(_apart(shape, strides)) != numbers.numel():
            raise ValueError(
                f"{numbers.numel()} numbers are no operand of shape {shape} with strides {strides}"
            )
        if not 0 <= self.offset * numbers.element_size() < ALIGNMENT_BYTES:
            raise ValueError(f"an operand {self.offset} elements from an aligned place")
        if _extent(shape, strides) > LOOSEST * numbers.numel():
            raise ValueError(
                f"an operand of shape {shape} with strides {strides} takes more than {LOOSEST:,} "
                "times the memory of its numbers"
            )

    @classmethod
    def of(cls, tensor: Tensor) -> "Operand":
        """A copy of a tensor of at least one dimension, wherever autograd or an optimizer writes
        afterwards."""
        shape, strides = tuple(tensor.shape), tensor.stride()
        own = tensor.detach().as_strided(_apart(shape, strides), strides)
        numbers = torch.empty(own.numel(), dtype=own.dtype, device=own.device)
        numbers.view(own.shape).copy_(own)
        offset = tensor.data_ptr() % ALIGNMENT_BYTES // tensor.element_size()
        return cls(numbers=numbers, shape=shape, strides=strides, offset=offset)

    def lying(self) -> Tensor:
        """The tensor itself; its numbers are not to be changed."""
        own, at = _apart(self.shape, self.strides), self.offset * self.numbers.element_size()
        there = self.numbers.data_ptr() % ALIGNMENT_BYTES == at
        if there and _contiguous(own, self.strides):
            return self.numbers.as_strided(self.shape, self.strides, self.numbers.storage_offset())
        room = self.numbers.new_empty(self.offset + _extent(self.shape, self.strides))
        room.as_strided(own, self.strides, self.offset).copy_(self.numbers.view(own))
        return room.as_strided(self.shape, self.strides, self.offset)

    def meta(self) -> list[Any]:
        """What a message says beside the numbers."""
        return [self.shape, self.strides, self.offset]


def operand_in(numbers: Tensor, meta: Any) -> Operand:
    """The operand that a message carries. Raises ValueError for what no member would send."""
    if not isinstance(meta, list | tuple) or len(meta) != 3:
        raise ValueError(f"{meta!r} does not say how an operand lies")
    shape, strides, offset = meta
    for wholes in (shape, strides, (offset,)):
        if not isinstance(wholes, list | tuple) or not all(
            type(n) is int and n >= 0 for n in wholes
        ):
            raise ValueError(f"{meta!r} does not say how an operand lies")
    return Operand(numbers=numbers, shape=tuple(shape), strides=tuple(strides), offset=offset)


def _apart(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The shape of the numbers that differ in their place."""
    pairs = zip(shape, strides, strict=True)
    return tuple(min(size, 1) if stride == 0 else size for size, stride in pairs)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first number to the end of the last one."""
    pairs = zip(shape, strides, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs) if all(shape) else 0


def _contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    wanted = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != wanted:
            return False
        wanted *= size
    return True
