"""What an exchange needs to know of its slot; it follows from strategy and layout alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from bamboo.topology.grid import Grid
from bamboo.topology.shards import SHARDED, Bucket, Piece, Synced, buckets_of, shards_of
from bamboo.topology.slots import Slot
from bamboo.topology.sync import FACTORS, ROWS, Sync, SyncEntry, entry_of, on_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """One tied parameter: all its uses as (global layer, name), in layer order."""

    number: int
    uses: tuple[tuple[int, str], ...]
    stages: tuple[int, ...]
    """The stage of each use."""

    @property
    def names(self) -> frozenset[str]:
        """Of all uses, as in the final files."""
        return frozenset(f"param/{layer}.{name}" for layer, name in self.uses)


@dataclass(frozen=True, kw_only=True)
class ExchangePlan:
    """What an exchange needs to know of its slot; it is the same in every step of one strategy."""

    slot: Slot
    grid: Grid
    leaves: int
    """Virtual nodes in the whole run."""
    blocks: tuple[range, ...]
    """Virtual nodes of each pipeline."""
    shapes: tuple[torch.Size, ...]
    names: tuple[str, ...]
    counts_in_norm: tuple[bool, ...]
    ties: tuple[Tie, ...]
    entries: tuple[SyncEntry, ...] = ()
    """How each tensor is synchronised; those beyond, such as the statistics of batch norms, go by
    `tree` when the whole backward is done."""
    zones: tuple[int, ...] = ()
    """The zone of each pipeline, where the strategy names them."""

    def by(self, sync: Sync) -> "ExchangePlan":
        """The plan of the same slot by another strategy."""
        entries = tuple(entry_of(sync, name) for name in self.names[: len(self.entries)])
        return replace(self, entries=entries, zones=sync.zones)

    @cached_property
    def first_layer(self) -> int:
        """The stage's first layer that has a gradient, by its global index."""
        return min(map(_layer_of, self.names), default=0)

    @cached_property
    def tensors(self) -> tuple[Synced, ...]:
        """The tensors of the gradient, in its order."""
        pipelines = self.grid.pipelines
        found = [
            Synced(
                layer=_layer_of(name),
                shape=tuple(shape),
                entry=on_grid(entry, pipelines, self.zones),
            )
            for name, shape, entry in zip(self.names, self.shapes, self.entries, strict=False)
        ]
        rest = self.shapes[len(found) :]
        last = [Synced(layer=self.first_layer, shape=tuple(s), entry=SyncEntry()) for s in rest]
        return (*found, *last)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Elements of a row of each tensor that goes by rows between pipelines or to a shadow; 0:
        it goes as it is."""
        kinds = ((t, (t.entry.exchange, t.entry.ship)) for t in self.tensors)
        return tuple(t.width if ROWS in both and len(t.shape) > 1 else 0 for t, both in kinds)

    @cached_property
    def ship_widths(self) -> tuple[int, ...]:
        """The same of those that go by rows to a shadow."""
        by_rows = (t.entry.ship == ROWS for t in self.tensors)
        return tuple(w if ships else 0 for w, ships in zip(self.widths, by_rows, strict=True))

    @cached_property
    def recorded(self) -> frozenset[int]:
        """The positions of the weights whose factors are sent."""
        kinds = ((p, (t.entry.exchange, t.entry.ship)) for p, t in enumerate(self.tensors))
        return frozenset(position for position, both in kinds if FACTORS in both)

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets of the gradient, in the order in which they leave."""
        return buckets_of(self.tensors, first_layer=self.first_layer, carrier=self._measures)

    @property
    def _measures(self) -> bool:
        """Whether the stage measures losses, of which other pipelines are told."""
        return self.grid.pipelines > 1 and self.slot.stage == self.grid.stages - 1

    @cached_property
    def shards(self) -> Mapping[int, Sequence[Sequence[Piece]]]:
        """By the number of a sharded bucket, the pieces of it that each pipeline sums."""
        return {
            bucket.number: shards_of(self.tensors, bucket.positions, self.grid.pipelines)
            for bucket in self.buckets
            if bucket.way == SHARDED
        }

    @cached_property
    def carrier(self) -> int:
        """The number of the bucket with which all that the stage has measured goes; -1: none."""
        if not self._measures:
            return -1
        whole = [
            bucket.number
            for bucket in self.buckets
            if bucket.way == SHARDED and not self.leaves_early(bucket)
        ]
        return whole[-1]

    def leaves_early(self, bucket: Bucket) -> bool:
        """Whether the bucket leaves before the last local backward is done."""
        return bucket.lowest > self.first_layer

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """The layers at which the last local backward stands for a bucket to leave, highest
        first. With one pipeline nothing leaves."""
        if self.grid.pipelines == 1:
            return ()
        early = {bucket.lowest for bucket in self.buckets if self.leaves_early(bucket)}
        return tuple(sorted(early, reverse=True))


class SyncSchedule:
    """How the steps of a run are synchronised, as one node knows it: what builds runs asks it."""

    def __init__(self, first: Sync) -> None:
        self._first = first
        self._choices: tuple[tuple[int, Sync], ...] = ()

    def have(self, choices: Sequence[tuple[int, Sync]]) -> None:
        """From now on these, each with the first step that it is for, in the order of these."""
        self._choices = tuple(choices)

    def at(self, step: int) -> Sync:
        """The strategy of a step."""
        return next((s for first, s in reversed(self._choices) if first <= step), self._first)

    def after(self, step: int) -> tuple[tuple[int, Sync], ...]:
        """The strategies of later steps."""
        return tuple(choice for choice in self._choices if choice[0] > step)


def _layer_of(name: str) -> int:
    return int(name.partition(".")[0])
