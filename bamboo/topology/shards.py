"""Buckets of a stage's gradient, and the part of each that every pipeline sums.

Rule: both follow from shapes, entries and grid alone, so all slots of a column know them without a
word. A bucket holds parameters of consecutive layers; it leaves once the last local backward has
passed its lowest layer. Buckets are packed from the last layer down, as backwards go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

from bamboo.topology.sync import FACTORS, OWNER, ROWS, TREE, ZONED, SyncEntry

FLOAT_BYTES = 4
SHARDED = "sharded"
"""The way of a bucket whose parameters go by `tree`, `owner` or `rows`; the other ways are `zoned`
and `factors`. A bucket has one way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A tensor of the stage's gradient."""

    layer: int
    """Global index."""
    shape: tuple[int, ...]
    entry: SyncEntry
    """As it is on this grid (`sync.on_grid`)."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return prod(self.shape[1:])

    @property
    def by_rows(self) -> bool:
        """Whether it is cut at rows, and only those with a bit set are sent."""
        return self.entry.exchange == ROWS and len(self.shape) > 1

    @property
    def way(self) -> str:
        """The way of the bucket that it belongs to."""
        exchange = self.entry.exchange
        return exchange if exchange in (ZONED, FACTORS) else SHARDED


class Piece(NamedTuple):
    """Elements [lo, hi) of the flattened tensor at `position` of the stage's gradient."""

    position: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Tensors that leave together, by their positions in the stage's gradient."""

    number: int
    way: str
    positions: tuple[int, ...]
    lowest: int
    """The lowest layer that a backward must have passed, by its global index."""


def buckets_of(tensors: Sequence[Synced], *, first_layer: int, carrier: bool) -> tuple[Bucket, ...]:
    """The buckets of a stage that begins with `first_layer`, in the order in which they leave.
    `carrier`: the last sharded one leaves with the whole backward, because what the stage has
    measured goes along; where none does, there is an empty one more."""
    groups: dict[tuple[str, int | None], list[int]] = {}
    for position, tensor in enumerate(tensors):
        groups.setdefault((tensor.way, tensor.entry.bucket), []).append(position)
    packed: list[tuple[str, list[int]]] = []
    for (way, bound), positions in groups.items():
        packed += [(way, part) for part in _packed(tensors, positions, bound)]
    lowest = [min(tensors[p].layer for p in part) for _, part in packed]
    if carrier and not any(
        way == SHARDED and low == first_layer for (way, _), low in zip(packed, lowest, strict=True)
    ):
        packed.append((SHARDED, []))
        lowest.append(first_layer)
    order = sorted(range(len(packed)), key=lambda at: (-lowest[at], packed[at][0], packed[at][1]))
    return tuple(
        Bucket(number=number, way=packed[at][0], positions=tuple(packed[at][1]), lowest=lowest[at])
        for number, at in enumerate(order)
    )


def _packed(
    tensors: Sequence[Synced], positions: Sequence[int], bound: int | None
) -> list[list[int]]:
    """These tensors in parts of whole layers, from the last layer down, each closed once it has
    `bound` bytes."""
    if bound is None:
        return [list(positions)]
    by_layer: dict[int, list[int]] = {}
    for position in positions:
        by_layer.setdefault(tensors[position].layer, []).append(position)
    out: list[list[int]] = []
    size = 0
    for number, layer in enumerate(sorted(by_layer, reverse=True)):
        if not number or size >= bound:
            out.append([])
            size = 0
        out[-1] += by_layer[layer]
        size += FLOAT_BYTES * sum(tensors[position].size for position in by_layer[layer])
    return [sorted(part) for part in out]


def shards_of(
    tensors: Sequence[Synced], positions: Sequence[int], pipelines: int
) -> tuple[tuple[Piece, ...], ...]:
    """For each pipeline the pieces that it sums of a sharded bucket, in the order of a message."""
    flat = [position for position in positions if _cut_anywhere(tensors[position])]
    shards: list[list[Piece]] = [[] for _ in range(pipelines)]
    bounds = _bounds(sum(tensors[position].size for position in flat), pipelines)
    for pipeline, (lo, hi) in enumerate(pairwise(bounds)):
        shards[pipeline] += _between(tensors, flat, lo, hi)
    for position in positions:
        tensor = tensors[position]
        if tensor.by_rows:
            for pipeline, (lo, hi) in enumerate(pairwise(_bounds(tensor.shape[0], pipelines))):
                if lo < hi and tensor.width:
                    piece = Piece(position, lo * tensor.width, hi * tensor.width)
                    shards[pipeline].append(piece)
        elif tensor.entry.exchange == OWNER and tensor.size:
            shards[tensor.entry.owner].append(Piece(position, 0, tensor.size))
    return tuple(tuple(sorted(pieces)) for pieces in shards)


def _cut_anywhere(tensor: Synced) -> bool:
    return tensor.entry.exchange == TREE or (tensor.entry.exchange == ROWS and not tensor.by_rows)


class Delegated(NamedTuple):
    """A piece of a zoned bucket: the pipeline that sums it, and the one in each zone that first
    adds what the pipelines of its zone have (the summing one in its own)."""

    piece: Piece
    owner: int
    delegates: tuple[int, ...]
    """By the place of the zone in the order of zones."""


def delegated(
    tensors: Sequence[Synced], positions: Sequence[int], zones: Sequence[int]
) -> tuple[Delegated, ...]:
    """The pieces of a zoned bucket; `zones` has the zone of each pipeline, two or more in all.

    The flat space is cut for each zone into as many parts as it has pipelines, so that these share
    the work; each part that all cuts leave whole is cut into one for each zone, so that the zones
    share it, too. Two zones then send each other the gradient twice in all, whatever the
    number of pipelines.
    """
    members = [
        [pipeline for pipeline, zone in enumerate(zones) if zone == name]
        for name in sorted(set(zones))
    ]
    total = sum(tensors[position].size for position in positions)
    bounds = sorted({bound for own in members for bound in _bounds(total, len(own))})
    out = []
    for lo, hi in pairwise(bounds):
        delegates = tuple(own[_part(lo, total, len(own))] for own in members)
        parts = _bounds(hi - lo, len(members))
        for owner, (begin, end) in zip(delegates, pairwise(parts), strict=True):
            for piece in _between(tensors, positions, lo + begin, lo + end):
                out.append(Delegated(piece, owner, delegates))
    return tuple(sorted(out))


def _bounds(total: int, parts: int) -> list[int]:
    return [total * part // parts for part in range(parts + 1)]


def _part(at: int, total: int, parts: int) -> int:
    """The number of the part that element `at` lies in."""
    return next(part for part in range(parts) if at < total * (part + 1) // parts)


def _between(tensors: Sequence[Synced], positions: Sequence[int], lo: int, hi: int) -> list[Piece]:
    """The pieces of elements [lo, hi) of these tensors, numbered one after the other."""
    out, before = [], 0
    for position in positions:
        size = tensors[position].size
        low, high = max(lo - before, 0), min(hi - before, size)
        if low < high:
            out.append(Piece(position, low, high))
        before += size
    return out
