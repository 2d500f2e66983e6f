"""Tensors that are kept in the host's memory and are on the device while something computes on
them, for state for which the memory of the device is short.

Rule: they come to the device in parts of at most PART_BYTES (or one tensor of each list, if those
are larger), and the device must be idle before a call, and is idle again when the call returns.
"""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from bamboo.runtime.device.devices import Device

PART_BYTES = 128 << 20


def compute_in_parts(
    device: Device,
    kept: Sequence[list[Tensor]],
    work: Callable[[list[int], list[list[Tensor]]], None],
) -> None:
    """Call `work` with the places in the lists and what was there, on the device, for all places in
    order. `work` changes these tensors; the lists then have new ones with the result, on the
    host."""
    for part in _parts(kept):
        there = [list(device.put([tensors[i] for i in part])) for tensors in kept]
        work(part, there)
        back = [device.fetch(tensors) for tensors in there]
        device.settle()
        for tensors, copies in zip(kept, back, strict=True):
            for i, copy in zip(part, copies.tensors, strict=True):
                tensors[i] = copy


def moved(device: Device, tensors: Sequence[Tensor], *, to_host: bool) -> list[Tensor]:
    """The same on the host or on the device."""
    if not to_host:
        return list(device.put(tensors))
    copy = device.fetch(tensors)
    device.settle()
    return list(copy.tensors)


def _parts(kept: Sequence[list[Tensor]]) -> Iterator[list[int]]:
    part: list[int] = []
    size = 0
    for i, row in enumerate(zip(*kept, strict=True)):
        bytes_here = sum(tensor.nbytes for tensor in row)
        if part and size + bytes_here > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(i)
        size += bytes_here
    if part:
        yield part
