"""Bytes, messages and extra work of each kind of synchronisation, for one step.

Rule: counts alone, no times. There are D pipelines with k partial sums each, and a parameter has P
bytes; the weight of a linear layer is M x N, and a pipeline's step has K rows of the layer's input.

    tree      a node sends (k+1)(D-1)/D P
    owner     each other pipeline sends k P, and the owner (D-1) P
    factors   a node sends 4K(D-1)(M+N), and computes 2KMN flops for each other pipeline's product
    rows      as tree, each message times the share of rows with a bit set, but never more than tree
    zoned     see `flows.zoned_flow`

A product takes at least the time to write its result. So a microbatch of fewer rows counts as one
of `Situation.least_rows`.
"""

from dataclasses import dataclass

import numpy as np

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.flows import Figures, partials_of, zoned_flow
from bamboo.planner.sync.situation import Situation
from bamboo.topology.shards import FLOAT_BYTES
from bamboo.topology.sync import (
    FACTORS,
    OWNER,
    ROWS,
    ZONED,
    SyncEntry,
)

INDEX_BYTES = 4
"""Bytes of the index of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """What pipelines send each other of some parameters in a step, and what they compute for it."""

    out: Figures
    """Bytes from each pipeline to each other one, shape (D, D): partial sums, or factors."""
    back: Figures
    """The same for whole sums."""
    flops: Figures
    """Those of the products that each pipeline forms of what others sent, shape (D,)."""
    added: Figures
    """Numbers that each pipeline adds or searches for bits, shape (D,)."""

    @classmethod
    def none(cls, pipelines: int) -> "Exchanged":
        """Nothing, between so many pipelines."""
        links, nodes = np.zeros((pipelines, pipelines)), np.zeros(pipelines)
        return cls(out=links, back=links, flops=nodes, added=nodes)

    def __add__(self, other: "Exchanged") -> "Exchanged":
        return Exchanged(
            out=self.out + other.out,
            back=self.back + other.back,
            flops=self.flops + other.flops,
            added=self.added + other.added,
        )

    @property
    def bytes(self) -> Figures:
        """From each pipeline to each other one, shape (D, D)."""
        return self.out + self.back


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """What an owner sends to its shadow in a step, and what the shadow computes for it."""

    bytes: float = 0.0
    flops: float = 0.0
    added: float = 0.0

    def __add__(self, other: "Shipped") -> "Shipped":
        return Shipped(
            bytes=self.bytes + other.bytes,
            flops=self.flops + other.flops,
            added=self.added + other.added,
        )


class Counts:
    """The counts of parameters in one situation; those of parameters that are alike are computed
    once. `zones`: as in `exchange_of`."""

    def __init__(self, situation: Situation, zones: tuple[int, ...] = ()) -> None:
        self.situation = situation
        self._zones = zones
        self._exchanged: dict[tuple[object, ...], Exchanged] = {}
        self._shipped: dict[tuple[object, ...], Shipped] = {}

    def exchange(self, facts: ParameterFacts, entry: SyncEntry) -> Exchanged:
        """As `exchange_of`."""
        key = (alike(facts), entry.exchange, entry.owner)
        if key not in self._exchanged:
            self._exchanged[key] = exchange_of(facts, entry, self.situation, self._zones)
        return self._exchanged[key]

    def ship(self, facts: ParameterFacts, entry: SyncEntry) -> Shipped:
        """As `ship_of`."""
        key = (alike(facts), entry.ship)
        if key not in self._shipped:
            self._shipped[key] = ship_of(facts, entry, self.situation)
        return self._shipped[key]


def alike(facts: ParameterFacts) -> tuple[object, ...]:
    """The facts of a parameter on which its counts depend."""
    return facts.shape, facts.rows_k, facts.density, facts.step_density


def exchange_of(
    facts: ParameterFacts, entry: SyncEntry, situation: Situation, zones: tuple[int, ...] = ()
) -> Exchanged:
    """What a parameter's exchange takes; `entry` is as it is on the grid. `zones`: those by which
    `zoned` adds, where the strategy names others than the situation has. Raises ValueError where
    the parameter cannot go by this kind."""
    count, size = situation.pipelines, facts.bytes
    held = partials_of(situation.shares, situation.microbatches)
    apart = 1.0 - np.eye(count)
    nothing = np.zeros(count)
    # Every sum of the whole tree is formed somewhere, by one pipeline or by parts.
    sums = max(0.0, float(held.counts.sum()) - 1) * facts.size
    shared = np.full(count, sums / count)
    if count == 1:
        return Exchanged.none(1)
    if entry.exchange == ZONED:
        out, back = zoned_flow(situation.shares, zones or situation.zones)
        return Exchanged(out=out * size, back=back * size, flops=nothing, added=shared)
    if entry.exchange == OWNER:
        out, back = np.zeros((count, count)), np.zeros((count, count))
        added = nothing.copy()
        out[:, entry.owner] = held.counts * size
        back[entry.owner, :] = size
        added[entry.owner] = sums
        return Exchanged(out=out * apart, back=back * apart, flops=nothing, added=added)
    if entry.exchange == FACTORS:
        return _factors(facts, situation)
    if entry.exchange == ROWS:
        step = situation.total
        partial = [sum(_rows_bytes(facts, n, step) for n in own) for own in held.microbatches]
        out = np.array(partial)[:, None] / count * apart
        back = np.full((count, count), _rows_bytes(facts, step, step) / count) * apart
        searched = (held.counts + 1 / count) * facts.size
        return Exchanged(out=out, back=back, flops=nothing, added=shared + searched)
    out = held.counts[:, None] * size / count * apart
    back = np.full((count, count), size / count) * apart
    return Exchanged(out=out, back=back, flops=nothing, added=shared)


def _factors(facts: ParameterFacts, situation: Situation) -> Exchanged:
    check_plain(facts)
    held, count = partials_of(situation.shares, situation.microbatches), situation.pipelines
    own = held.totals
    sides = sum(facts.shape)
    each = situation.factor_bytes * facts.rows_k * sides
    out = np.repeat((own * each)[:, None], count, axis=1) * (1.0 - np.eye(count))
    others = own.sum() - own
    return Exchanged(
        out=out,
        back=np.zeros((count, count)),
        flops=others * _product_flops(facts, situation),
        added=(others + held.counts) * facts.size,
    )


def _product_flops(facts: ParameterFacts, situation: Situation) -> float:
    """Flops of the product of one microbatch, by which a gradient is formed from factors."""
    return 2.0 * max(facts.rows_k, situation.least_rows) * facts.size


def ship_of(facts: ParameterFacts, entry: SyncEntry, situation: Situation) -> Shipped:
    """What an owner ships of a parameter; `entry` is as it is on the grid. Raises ValueError where
    the parameter cannot go by this kind."""
    if not situation.replica:
        return Shipped()
    if entry.ship == FACTORS:
        check_plain(facts)
        rows = facts.rows_k * situation.total
        return Shipped(
            bytes=float(situation.factor_bytes * rows * sum(facts.shape)),
            flops=situation.total * _product_flops(facts, situation),
            added=float(situation.total * facts.size),
        )
    if entry.ship == ROWS:
        step = situation.total
        return Shipped(bytes=_rows_bytes(facts, step, step), added=float(facts.size))
    return Shipped(bytes=float(facts.bytes))


def check_plain(facts: ParameterFacts) -> None:
    """Raises ValueError, with the use that forbids it, unless factors can stand for the gradient of
    this parameter."""
    if not facts.rows_k:
        why = facts.why_not or "is no weight that one matrix product uses"
        raise ValueError(f"{facts.name} cannot go by factors: it {why}")


def check_rows(facts: ParameterFacts) -> None:
    """Raises ValueError where the gradient of this parameter has no rows."""
    if not facts.rows:
        why = "is a vector" if len(facts.shape) < 2 else "has no rows"
        raise ValueError(f"{facts.name} cannot go by rows: it {why}; take tree and dense")


def _rows_bytes(facts: ParameterFacts, microbatches: int, step: int) -> float:
    """Bytes of the sum of so many microbatches, by rows or, where that is less, whole. `step`: the
    microbatches of a step."""
    if not facts.rows:
        return float(facts.bytes)
    rows = facts.rows * facts.density_after(microbatches, step)
    return min(float(facts.bytes), rows * (FLOAT_BYTES * facts.width + INDEX_BYTES))
