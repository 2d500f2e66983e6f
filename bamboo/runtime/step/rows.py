"""A gradient of which few rows have anything: only these rows are sent, with their numbers.

Rule: it is lossless. A row is left out when no bit of it is set, so it is +0.0 throughout, and the
receiver puts +0.0 in its place; a row of -0.0 is sent. What rows do not make smaller goes as it is,
so nobody chooses for a message; its meta says what was done.
(Kim et al., "Parallax", EuroSys 2019, sends a sparse gradient as its rows, too.)
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

ROWS = "rows"
"""The key in a message's meta: [place, number of rows, elements of a row] of each such tensor."""


def packed(tensors: Sequence[Tensor], widths: Sequence[int]) -> tuple[list[Tensor], dict[str, Any]]:
    """The tensors of a message, and what its meta says of them. `widths`: elements of a row of each
    contiguous float32 tensor that may go by rows; 0: it goes as it is."""
    out: list[Tensor] = []
    by_rows: list[list[int]] = []
    for place, (tensor, width) in enumerate(zip(tensors, widths, strict=True)):
        rows = _rows_of(tensor, width) if width else None
        if rows is None:
            out.append(tensor)
            continue
        by_rows.append([place, tensor.numel() // width, width])
        out += rows
    return out, {ROWS: by_rows} if by_rows else {}


def _rows_of(tensor: Tensor, width: int) -> tuple[Tensor, Tensor] | None:
    """The numbers (int32) and the contents of the rows with a bit set; None where they take as many
    bytes as the tensor, or more."""
    table = tensor.reshape(-1, width)
    numbers = touched(table).nonzero().flatten()
    if numbers.numel() * (width + 1) >= tensor.numel():
        return None
    return numbers.to(torch.int32), table[numbers]


def touched(table: Tensor) -> Tensor:
    """Which rows of a contiguous float32 matrix have a bit set."""
    bits = table.view(torch.int32)
    # Two passes over the bits take a third of the time of one that asks whether any is set.
    return (bits.amax(1) != 0) | (bits.amin(1) != 0)


def unpacked(tensors: Sequence[Tensor], meta: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that were packed; one that came by rows is flat. Raises ValueError for tensors
    that do not fit what the meta says."""
    by_rows = {int(place): (int(count), int(width)) for place, count, width in meta.get(ROWS, ())}
    out: list[Tensor] = []
    came = iter(tensors)
    left = len(tensors) - len(by_rows)
    for place in range(left):
        tensor = next(came)
        if place not in by_rows:
            out.append(tensor)
            continue
        (count, width), contents = by_rows[place], next(came)
        if contents.shape != (tensor.numel(), width):
            raise ValueError(f"{tuple(contents.shape)} are no {tensor.numel()} rows of {width}")
        table = contents.new_zeros((count, width))
        table.index_copy_(0, tensor.long(), contents)
        out.append(table.flatten())
    return out


def whole(
    tensors: Sequence[Tensor], meta: Mapping[str, Any], shapes: Iterable[torch.Size]
) -> list[Tensor]:
    """The same in these shapes, one for each tensor."""
    return [x.reshape(shape) for x, shape in zip(unpacked(tensors, meta), shapes, strict=True)]


def densities(tensors: Sequence[Tensor]) -> list[float]:
    """The share of rows with a bit set, of each of these float32 tensors of two dimensions or more
    that have elements."""
    if not tensors:
        return []
    counts = [touched(x.reshape(len(x), -1)).count_nonzero() for x in tensors]
    # All numbers are read at once, because a GPU is idle while one is read.
    found: list[int] = torch.stack(counts).tolist()
    return [count / len(x) for count, x in zip(found, tensors, strict=True)]
