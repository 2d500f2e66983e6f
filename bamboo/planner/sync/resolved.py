"""A strategy on a grid: the bytes of each kind, of each stage and of each bucket.

Rule: sums of `costs`, by the buckets that the runtime lays (`topology.shards`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.costs import Counts, Exchanged, Shipped
from bamboo.planner.sync.flows import Figures, crosses
from bamboo.planner.sync.situation import Situation
from bamboo.topology.shards import Synced, buckets_of
from bamboo.topology.sync import DENSE, FACTORS, ZONED, Sync, SyncEntry, entries, on_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCost:
    """The parameters that leave together."""

    stage: int
    way: str
    names: tuple[str, ...]
    left_s: float
    """How long before the end of its stage's last backward it leaves."""
    exchanged: Exchanged

    @property
    def hops(self) -> int:
        """Messages one after the other on each of the two ways."""
        return 2 if self.way == ZONED else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage: its buckets in the order in which they leave, and what it ships."""

    stage: int
    buckets: tuple[BucketCost, ...]
    shipped: Shipped
    sent_by_kind: Mapping[str, float] = field(default_factory=dict)
    """Kind of exchange -> bytes that all pipelines of the stage send."""
    shipped_by_kind: Mapping[str, float] = field(default_factory=dict)
    """Kind of ship -> bytes that one owner ships."""

    @property
    def bytes(self) -> Figures:
        """From each pipeline to each other one, shape (D, D)."""
        return np.asarray(sum(one.exchanged.bytes for one in self.buckets))

    @property
    def most_sent(self) -> float:
        """Bytes that the busiest node of the stage sends to other pipelines."""
        return float(self.bytes.sum(axis=1).max()) if self.buckets else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A strategy on a grid, parameter by parameter."""

    situation: Situation
    entries: Mapping[str, SyncEntry]
    """As they are on this grid."""
    stages: tuple[StageCost, ...]

    def sent_by_kind(self) -> dict[str, float]:
        """Kind of exchange -> bytes that all nodes send in a step."""
        return _summed([stage.sent_by_kind for stage in self.stages])

    def shipped_by_kind(self) -> dict[str, float]:
        """Kind of ship -> bytes that all owners ship in a step."""
        found = _summed([stage.shipped_by_kind for stage in self.stages])
        return {kind: size * self.situation.pipelines for kind, size in found.items()}

    @property
    def exchanged_bytes(self) -> float:
        """What all nodes send each other between pipelines."""
        return sum(self.sent_by_kind().values())

    @property
    def shipped_bytes(self) -> float:
        """What all owners send to their shadows."""
        return sum(self.shipped_by_kind().values())

    def between_zones(self, zones: Sequence[int] = ()) -> float:
        """Bytes of the exchange between pipelines of different zones, by default of the
        situation's."""
        across = crosses(self.situation, tuple(zones))
        return float(sum(stage.bytes[across].sum() for stage in self.stages if stage.buckets))


def resolve(
    sync: Sync,
    facts: Sequence[ParameterFacts],
    situation: Situation,
    *,
    statistics: Mapping[int, int] | None = None,
) -> Resolved:
    """The strategy on a grid, which is as the runtime has it: `zoned` adds by the zones that the
    strategy names. `statistics`: layer -> numbers that go by `tree` and `dense` with its gradients.
    Raises ValueError for a rule that matches nothing, two that match the same, and a
    kind that a parameter cannot go by."""
    trained = [one for one in facts if one.trained]
    named = entries(sync, [one.name for one in trained])
    placed = {
        name: on_grid(entry, situation.pipelines, sync.zones) for name, entry in named.items()
    }
    measured = [
        ParameterFacts(name=f"{layer}.(statistics)", shape=(size,), layer=layer)
        for layer, size in (statistics or {}).items()
        if size
    ]
    with_all = {**placed, **{one.name: SyncEntry(bucket=sync.bucket) for one in measured}}
    counts = Counts(situation, sync.zones)
    stages = by_stages([*trained, *measured], situation)
    return Resolved(
        situation=situation,
        entries=placed,
        stages=tuple(stage_cost(stage, own, with_all, counts) for stage, own in enumerate(stages)),
    )


def by_stages(facts: Sequence[ParameterFacts], situation: Situation) -> list[list[ParameterFacts]]:
    """The parameters of each stage."""
    found: list[list[ParameterFacts]] = [[] for _ in range(situation.stages)]
    for one in facts:
        found[situation.stage_of(one.layer)].append(one)
    return found


def stage_cost(
    stage: int,
    own: Sequence[ParameterFacts],
    placed: Mapping[str, SyncEntry],
    counts: Counts,
) -> StageCost:
    """One stage, with these parameters."""
    situation = counts.situation
    tensors = [Synced(layer=x.layer, shape=x.shape, entry=placed[x.name]) for x in own]
    parts = [counts.exchange(x, placed[x.name]) for x in own]
    sent: dict[str, float] = {}
    shipped: dict[str, float] = {}
    whole = Shipped()
    for x, part in zip(own, parts, strict=True):
        entry, ships = placed[x.name], counts.ship(x, placed[x.name])
        whole = whole + ships
        sent[entry.exchange] = sent.get(entry.exchange, 0.0) + float(part.bytes.sum())
        kind = entry.ship if situation.replica else DENSE
        shipped[kind] = shipped.get(kind, 0.0) + ships.bytes
    buckets = []
    first, several = min((x.layer for x in own), default=0), situation.pipelines > 1
    # What the last stage has measured goes with its last bucket.
    carrier = several and stage == situation.stages - 1
    for one in buckets_of(tensors, first_layer=first, carrier=carrier) if own and several else ():
        exchanged = Exchanged.none(situation.pipelines)
        for position in one.positions:
            exchanged = exchanged + parts[position]
        early = one.lowest > first and situation.passed_s
        buckets.append(
            BucketCost(
                stage=stage,
                way=one.way,
                names=tuple(own[position].name for position in one.positions),
                left_s=situation.passed_s[one.lowest] if early else 0.0,
                exchanged=exchanged,
            )
        )
    return StageCost(
        stage=stage,
        buckets=tuple(buckets),
        shipped=whole,
        sent_by_kind=sent if several else {},
        shipped_by_kind=shipped if situation.replica else {},
    )


def held_factors(resolved: Resolved, facts: Sequence[ParameterFacts]) -> tuple[int, ...]:
    """Bytes of factors that the node of each stage holds at most: for the exchange those of all
    pipelines, and its own of the step before in the stash; for the ship those of the whole step
    besides, in the stash, and those that come of the next stage."""
    situation = resolved.situation
    total = situation.total
    most = max(situation.shares) * situation.microbatches
    exchanged, shipped = [0] * situation.stages, [0] * situation.stages
    for one in facts:
        entry = resolved.entries.get(one.name)
        if entry is None:
            continue
        stage = situation.stage_of(one.layer)
        each = situation.factor_bytes * one.rows_k * sum(one.shape)
        if entry.exchange == FACTORS and situation.pipelines > 1:
            exchanged[stage] += each * (total + most)
        if entry.ship == FACTORS and situation.replica:
            shipped[stage] += each * total
    return tuple(
        exchanged[stage] + 2 * shipped[stage] + shipped[(stage + 1) % situation.stages]
        for stage in range(situation.stages)
    )


def fits(resolved: Resolved, facts: Sequence[ParameterFacts]) -> bool:
    """Whether nodes have the memory for the factors that they would hold, as far as it is known."""
    spare = resolved.situation.spare_bytes
    return not spare or all(map(int.__le__, held_factors(resolved, facts), spare))


def _summed(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    out: dict[str, float] = {}
    for part in parts:
        for kind, size in part.items():
            out[kind] = out.get(kind, 0.0) + size
    return out
