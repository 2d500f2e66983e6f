"""What pipelines send each other, as arrays over pairs of pipelines.

Rule: `situation` is a plain value that every plan has; the arrays are here, so that a plan without
a strategy does not load numpy.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import lcm

import numpy as np
from numpy.typing import NDArray

from bamboo.planner.sync.situation import Situation, merged_partials
from bamboo.topology.reduction import subtrees
from bamboo.topology.shards import Synced, delegated
from bamboo.topology.sync import ZONED, SyncEntry
from bamboo.topology.virtual_nodes import blocks_of

Figures = NDArray[np.float64]


def crosses(situation: Situation, zones: tuple[int, ...] = ()) -> NDArray[np.bool_]:
    """For each pair of pipelines, whether they are in different zones."""
    where = np.array(zones or situation.zones or (0,) * situation.pipelines)
    return np.asarray(where[:, None] != where[None, :])


def rates(situation: Situation, stage: int) -> tuple[Figures, Figures]:
    """Seconds per byte and latency of the link of each pair of pipelines, in a stage."""
    count = situation.pipelines
    per_byte = np.full((count, count), 1 / situation.bytes_per_s if situation.bytes_per_s else 0.0)
    latency = np.full((count, count), situation.latency_s)
    if situation.far is not None:
        across = crosses(situation)
        per_byte[across] = 1 / situation.far.bytes_per_s if situation.far.bytes_per_s else 0.0
        latency[across] = situation.far.latency_s
    for one in situation.slow:
        if one.is_link and one.stage == stage:
            per_byte[one.pipeline, one.to] *= one.times
    return per_byte, latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Partials:
    """The partial sums that the pipelines hand over."""

    microbatches: tuple[tuple[int, ...], ...]
    """For each pipeline, how many microbatches each of its partial sums has."""

    @property
    def counts(self) -> Figures:
        """Partial sums of each pipeline."""
        return np.array([len(own) for own in self.microbatches], dtype=np.float64)

    @property
    def totals(self) -> Figures:
        """Microbatches of each pipeline."""
        return np.array([sum(own) for own in self.microbatches], dtype=np.float64)


@lru_cache(maxsize=1024)
def partials_of(shares: tuple[int, ...], microbatches: int) -> Partials:
    """The partial sums of pipelines with these shares."""
    leaves = sum(shares)
    return Partials(
        microbatches=tuple(
            tuple((hi - lo) * microbatches for lo, hi in subtrees(block.start, block.stop, leaves))
            for block in blocks_of(shares)
        )
    )


@lru_cache(maxsize=1024)
def zoned_flow(shares: tuple[int, ...], zones: tuple[int, ...]) -> tuple[Figures, Figures]:
    """Of a parameter that goes by `zoned`, in multiples of its bytes: what each pipeline sends to
    each other one as partial sums, and as whole sums.

    The pipelines of a zone send their partial sums of a piece to its delegate there, which adds
    siblings and sends what remains to the piece's owner; the sum goes the same way back.
    """
    count = len(shares)
    held = partials_of(shares, 1).counts
    merged = dict(zip(sorted(set(zones)), merged_partials(shares, zones), strict=True))
    out, back = np.zeros((count, count)), np.zeros((count, count))
    sizes = [zones.count(zone) for zone in sorted(set(zones))]
    length = lcm(*sizes) * len(sizes)
    whole = Synced(layer=0, shape=(length,), entry=SyncEntry(exchange=ZONED))
    for piece, owner, delegates in delegated([whole], [0], zones):
        share = (piece.hi - piece.lo) / length
        for zone, delegate in zip(sorted(set(zones)), delegates, strict=True):
            for one in range(count):
                if zones[one] == zone and one != delegate:
                    out[one, delegate] += share * held[one]
                    back[delegate, one] += share
            if delegate != owner:
                out[delegate, owner] += share * merged[zone]
                back[owner, delegate] += share
    return out, back
