"""Tensors that are kept in the host's memory and are on the device while something computes on
them, for state for which the memory of the device is short.

Rule: they come to the device in parts of at most PART_BYTES (or one table, if that is
larger), and the device must be idle before a call, and is idle again when the call returns.
"""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from bamboo.runtime.device.devices import Device

PART_BYTES = 128 << 20


def compute_in_parts(
    device: Device,
    kept: Sequence[dict[str, Tensor]],
    work: Callable[[list[int], list[dict[str, Tensor]]], None],
) -> None:
    """Call `work` with places in `kept` and what was there, on the device, for all places in order.
    `work` changes these tensors; the tables then have new ones with the result, on the host."""
    for part in _parts(kept):
        where = [(i, name) for i in part for name in kept[i]]
        there = device.put([kept[i][name] for i, name in where])
        rest = iter(there)
        work(part, [{name: next(rest) for name in kept[i]} for i in part])
        back = device.fetch(there)
        device.settle()
        for (i, name), copy in zip(where, back.tensors, strict=True):
            kept[i][name] = copy


def moved(device: Device, tensors: Sequence[Tensor], *, to_host: bool) -> list[Tensor]:
    """The same on the host or on the device."""
    if not to_host:
        return list(device.put(tensors))
    copy = device.fetch(tensors)
    device.settle()
    return list(copy.tensors)


def _parts(kept: Sequence[dict[str, Tensor]]) -> Iterator[list[int]]:
    part: list[int] = []
    size = 0
    for i, own in enumerate(kept):
        bytes_here = sum(tensor.nbytes for tensor in own.values())
        if part and size + bytes_here > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(i)
        size += bytes_here
    if part:
        yield part
