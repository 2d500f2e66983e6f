"""Strategies by name, from facts of parameters and the grid on which they are synchronised.

Rule: a builder is a pure function, and what it returns names each parameter for itself. Every kind
gives the same bits, so a builder decides nothing but time and bill.

`sparse-hybrid` is after Kim et al., "Parallax" (EuroSys 2019), which sends sparse gradients by rows
and dense ones by a reduction; `factors-hybrid` after Zhang et al., "Poseidon" (USENIX ATC 2017),
which sends a wide layer's two factors where they are fewer bytes; `balanced` is list scheduling,
largest first (Graham, 1969).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bamboo.errors import InputError
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.costs import Counts, alike, check_plain, exchange_of, ship_of
from bamboo.planner.sync.flows import partials_of, rates
from bamboo.planner.sync.price import Price, StagePrice, stage_price, whole_price, work_seconds
from bamboo.planner.sync.resolved import Resolved, StageCost, by_stages, stage_cost
from bamboo.planner.sync.situation import Situation, merged_partials
from bamboo.planner.sync.worth import LEAST, factors_fewer, may_win, partial_sums
from bamboo.topology.sync import (
    DENSE,
    FACTORS,
    OWNER,
    ROWS,
    TREE,
    ZONED,
    Sync,
    SyncEntry,
    SyncRule,
    on_grid,
)

MIB = 2**20
BOUNDS: tuple[int | None, ...] = (None, 16 * MIB, 4 * MIB, MIB, 0)
"""Bounds of a bucket that `auto` and the search try, in bytes."""
SPARSE = 0.8
"""Rows are taken where they are at most this share of the bytes of the whole, because densities
change from step to step."""
SAME = 0.002
"""Two strategies whose costs differ by less than this share are taken to cost the same."""

Group = tuple[ParameterFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Entries of parameters, with their price."""

    entries: Mapping[str, SyncEntry]
    bucket: int | None
    resolved: Resolved
    price: Price

    def better(self, other: "Priced") -> bool:
        """Whether its step costs less or, where both cost as much, links and nodes are in use
        for less time; or, where sizes do not matter, fewer bytes are sent."""
        mine_s, its_s = self.price.cost_s, other.price.cost_s
        if abs(mine_s - its_s) > SAME * max(mine_s, its_s):
            return mine_s < its_s
        if self.price.spent_s != other.price.spent_s:
            return self.price.spent_s < other.price.spent_s * (1 - SAME)
        return self.price.sent_bytes < other.price.sent_bytes * (1 - SAME)


class Best:
    """The best of the strategies that were offered. It never costs more than the least cost and
    SAME of it, however many offers were better by other figures at nearly the same cost."""

    def __init__(self, first: Priced) -> None:
        self.now = first
        self._least_s = first.price.cost_s

    def offer(self, found: Priced) -> bool:
        """Take it if it is better; whether it was."""
        if found.price.cost_s > self._least_s * (1 + SAME) or not found.better(self.now):
            return False
        self.now = found
        self._least_s = min(self._least_s, found.price.cost_s)
        return True


def build(name: str, facts: Sequence[ParameterFacts], situation: Situation) -> Sync:
    """The strategy that a builder of this name makes. Raises InputError for a name that there is
    not, and for `zoned` where no zone's pipelines could add anything."""
    if name not in BUILDERS:
        raise InputError(f"sync {name!r} is no builder; take one of {', '.join(BUILDERS)}")
    return BUILDERS[name]([one for one in facts if one.trained], situation)


def tree(facts: Sequence[ParameterFacts], situation: Situation) -> Sync:
    """Each parameter whole, a shard of it summed by every pipeline."""
    return Sync()


def owner(facts: Sequence[ParameterFacts], situation: Situation) -> Sync:
    """Each parameter summed by one pipeline, which follows from a checksum of its name."""
    if situation.pipelines == 1 or not facts:
        return Sync()
    owners = tuple(range(situation.pipelines))
    return Sync(rules=(SyncRule(match="*", exchange=OWNER, owners=owners),))


def balanced(facts: Sequence[ParameterFacts], situation: Situation) -> Sync:
    """Each parameter summed by one pipeline: the largest first, to the one of its stage that has
    least so far."""
    if situation.pipelines == 1:
        return Sync()
    loads = [[0] * situation.pipelines for _ in range(situation.stages)]
    entries = {}
    for one in sorted(facts, key=lambda one: (-one.bytes, one.name)):
        own = loads[situation.stage_of(one.layer)]
        least = min(range(len(own)), key=own.__getitem__)
        own[least] += one.bytes
        entries[one.name] = SyncEntry(exchange=OWNER, owner=least)
    return sync_from(entries)


def sparse_hybrid(facts: Sequence[ParameterFacts], situation: Situation) -> Sync:
    """By rows where few have a bit set, all else by `tree`."""
    return sync_from({one.name: _sparse(one, situation) for one in facts})


def factors_hybrid(facts: Sequence[ParameterFacts], situation: Situation) -> Sync:
    """By factors where these take less time than the whole, products included; else by `tree`."""
    return sync_from({one.name: _factored(one, situation) for one in facts})


def zoned(facts: Sequence[ParameterFacts], situation: Situation) -> Sync:
    """Each parameter by `zoned`. Raises InputError where that can save nothing: with one zone, or
    shares of which no zone has siblings of the tree."""
    check_zones(situation)
    rule = SyncRule(match="*", exchange=ZONED)
    return Sync(rules=(rule,) if facts else (), zones=situation.zones)


def auto(facts: Sequence[ParameterFacts], situation: Situation) -> Sync:
    """The strategy that is predicted to cost least, in time and in bytes that are billed. Of those
    within SAME of the least cost it takes the one that keeps links and nodes in use for the
    shortest time. It is `tree` where the best would win less than LEAST.

    It begins with the cheapest kind of each parameter alone, under several bounds of buckets. Then
    the other kinds of each group of like parameters are tried while that makes the strategy better.
    """
    if not may_win(facts, situation):
        return Sync()
    pricing = Pricing(facts, situation)
    plain = pricing.of({}, None)
    best = Best(plain)
    bounds = BOUNDS if situation.pipelines > 1 else (None,)
    for entries in _starts(pricing.facts, situation):
        for bound in bounds:
            best.offer(pricing.of(entries, bound))
    groups = [
        (group, tried)
        for group in grouped(pricing.facts, situation)
        if len(tried := [x for x in choices(group, situation) if x.exchange != OWNER]) > 1
    ]
    improved = True
    while improved:
        improved = False
        for group, tried in groups:
            for choice in tried:
                changed = {**best.now.entries, **{one.name: choice for one in group}}
                improved |= best.offer(pricing.of(changed, best.now.bucket))
        for bound in bounds:
            improved |= best.offer(pricing.of(best.now.entries, bound))
    if best.now.price.cost_s > (1 - LEAST) * plain.price.cost_s:
        return Sync()
    return pricing.sync(best.now)


BUILDERS: Mapping[str, Callable[[Sequence[ParameterFacts], Situation], Sync]] = {
    "tree": tree,
    "owner": owner,
    "balanced": balanced,
    "sparse-hybrid": sparse_hybrid,
    "factors-hybrid": factors_hybrid,
    "zoned": zoned,
    "auto": auto,
}
"""Name -> builder."""


class Pricing:
    """Prices strategies of the same parameters in the same situation, and counts how many.

    Parameters of a layer for which no other kind sends fewer bytes than `tree` are priced as one.
    """

    def __init__(self, facts: Sequence[ParameterFacts], situation: Situation) -> None:
        self._situation = situation
        self._counts = Counts(situation)
        self._stages: dict[tuple[object, ...], _Stage] = {}
        """Stage and entries of its parameters -> its cost."""
        self._names: dict[str, tuple[str, ...]] = {}
        """Name of a parameter that stands for several -> their names."""
        self.facts = self._joined(facts)
        self._by_stage = by_stages(self.facts, situation)
        self.evaluations = 0

    def of(self, entries: Mapping[str, SyncEntry], bucket: int | None) -> Priced:
        """These entries, and `tree` for all else, with one bound for all."""
        return self.priced(
            {one.name: replace(entries.get(one.name, _TREE), bucket=bucket) for one in self.facts},
            bucket,
        )

    def priced(self, entries: Mapping[str, SyncEntry], bucket: int | None = None) -> Priced:
        """These entries of all parameters, each with its own bound; `bucket` is the common one."""
        self.evaluations += 1
        resolved = self.resolved(entries)
        stages = [self._stage(stage, resolved.entries) for stage in range(self._situation.stages)]
        found = whole_price(resolved, [one.price for one in stages])
        return Priced(entries=resolved.entries, bucket=bucket, resolved=resolved, price=found)

    def resolved(self, entries: Mapping[str, SyncEntry]) -> Resolved:
        """These entries of all parameters on the grid, without a price."""
        situation = self._situation
        placed = {
            name: on_grid(entry, situation.pipelines, situation.zones)
            for name, entry in entries.items()
        }
        stages = tuple(self._stage(stage, placed).cost for stage in range(situation.stages))
        return Resolved(situation=situation, entries=placed, stages=stages)

    def _stage(self, stage: int, placed: Mapping[str, SyncEntry]) -> "_Stage":
        own = self._by_stage[stage]
        key = (stage, *(placed[one.name] for one in own))
        if key not in self._stages:
            cost = stage_cost(stage, own, placed, self._counts)
            self._stages[key] = _Stage(cost, self._situation)
        return self._stages[key]

    def sync(self, of: Priced) -> Sync:
        """The strategy for the parameters themselves."""
        return self.sync_of(of.entries, of.bucket)

    def sync_of(self, entries: Mapping[str, SyncEntry], bucket: int | None = None) -> Sync:
        """As `sync`, of entries that were given to `priced`."""
        named = {
            name: entry
            for joined, entry in entries.items()
            for name in self._names.get(joined, (joined,))
        }
        return sync_from(named, zones=self._situation.zones, bucket=bucket)

    def _joined(self, facts: Sequence[ParameterFacts]) -> list[ParameterFacts]:
        kept: list[ParameterFacts] = []
        by_layer: dict[int, list[ParameterFacts]] = {}
        may_save: dict[tuple[object, ...], bool] = {}
        for one in facts:
            key = alike(one)
            if key not in may_save:
                may_save[key] = _may_save(one, self._situation)
            if may_save[key]:
                kept.append(one)
            else:
                by_layer.setdefault(one.layer, []).append(one)
        for layer, own in by_layer.items():
            name = f"all else of layer {layer}"
            self._names[name] = tuple(one.name for one in own)
            kept.append(ParameterFacts(name=name, shape=(sum(x.size for x in own),), layer=layer))
        return kept


class _Stage:
    """One stage with the entries of its parameters."""

    def __init__(self, cost: StageCost, situation: Situation) -> None:
        self.cost = cost
        self._situation = situation

    @cached_property
    def price(self) -> StagePrice:
        return stage_price(self.cost, self._situation)


_TREE = SyncEntry()


def _may_save(one: ParameterFacts, situation: Situation) -> bool:
    """Whether a kind beside `owner` and `zoned` sends fewer bytes of this parameter."""
    whole = sum(_sent(one, _TREE, situation))
    return any(
        sum(_sent(one, choice, situation)) < whole
        for choice in choices((one,), situation)
        if choice.exchange in (TREE, ROWS, FACTORS)
    )


def grouped(facts: Iterable[ParameterFacts], situation: Situation) -> list[Group]:
    """Parameters that are alike: of one stage, with the same shape, rows and densities."""
    found: dict[tuple[object, ...], list[ParameterFacts]] = {}
    for one in facts:
        key = (
            situation.stage_of(one.layer),
            one.shape,
            one.rows_k,
            one.density,
            one.step_density,
        )
        found.setdefault(key, []).append(one)
    return [tuple(group) for group in found.values()]


def choices(group: Group, situation: Situation) -> list[SyncEntry]:
    """What a group may be on this grid, without bounds of buckets, `tree` first. By `owner`, the
    pipeline that sums them; by factors only where these are fewer bytes than the whole."""
    one, several = group[0], situation.pipelines > 1
    factored = factors_fewer(one, situation, sum(partial_sums(situation.shares)))
    exchanges = [TREE]
    if several and one.rows and one.density < 1:
        exchanges.append(ROWS)
    if several and factored:
        exchanges.append(FACTORS)
    if several and _zones_merge(situation):
        exchanges.append(ZONED)
    ships = [DENSE]
    if situation.replica and one.rows and one.step_density < 1:
        ships.append(ROWS)
    found = [SyncEntry(exchange=exchange, ship=ship) for exchange in exchanges for ship in ships]
    if several:
        found += [
            SyncEntry(exchange=OWNER, ship=ship, owner=owner)
            for owner in range(situation.pipelines)
            for ship in ships
        ]
    if situation.replica and factored:
        found.append(SyncEntry(exchange=FACTORS if several else TREE, ship=FACTORS))
    return found


def sync_from(
    entries: Mapping[str, SyncEntry], *, zones: tuple[int, ...] = (), bucket: int | None = None
) -> Sync:
    """Rules that give these entries: one for all if they are equal, else one for each parameter
    that does not go by `tree` and `dense` under the common bound. An entry without a bound has the
    common one."""
    kinds = {(entry.exchange, entry.ship, entry.owner, entry.bucket) for entry in entries.values()}
    names = {"*": next(iter(entries.values()))} if len(kinds) == 1 else entries
    rules = tuple(
        SyncRule(
            match=name if name == "*" else exactly(name),
            exchange=entry.exchange,
            ship=entry.ship,
            owners=(entry.owner,) if entry.exchange == OWNER else (),
            bucket=entry.bucket if entry.bucket != bucket else None,
        )
        for name, entry in names.items()
        if (entry.exchange, entry.ship, entry.bucket) != (TREE, DENSE, bucket)
    )
    crosses = any(rule.exchange == ZONED for rule in rules)
    return Sync(rules=rules, bucket=bucket, zones=zones if crosses else ())


def exactly(name: str) -> str:
    """The pattern that matches this name alone (`fnmatch`)."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def check_zones(situation: Situation) -> None:
    """Raises InputError unless some zone's pipelines have siblings of the tree to add."""
    if len(set(situation.zones)) < 2:
        raise InputError(
            "sync 'zoned' needs the pipelines in two zones or more; take 'tree', or "
            "cluster.spread = 'pipelines'"
        )
    if not _zones_merge(situation):
        raise InputError(
            f"sync 'zoned' saves nothing for shares {list(situation.shares)} in zones "
            f"{list(situation.zones)}: no zone holds siblings of the tree; take as many virtual "
            "nodes as a power of two, and consecutive pipelines of a zone, as "
            f"{sorted(situation.zones)}"
        )


def _zones_merge(situation: Situation) -> bool:
    """Whether the pipelines of some zone add siblings before anything leaves the zone."""
    if len(set(situation.zones)) < 2:
        return False
    apart = partials_of(situation.shares, 1).counts.sum()
    return bool(sum(merged_partials(situation.shares, situation.zones)) < apart)


def _starts(facts: Sequence[ParameterFacts], situation: Situation) -> list[dict[str, SyncEntry]]:
    """The strategies with which `auto` begins: each parameter by its own cheapest kind, and all
    others by `tree` or, where a zone merges anything, by `zoned`."""
    own = {}
    for one in facts:
        few, many = _factored(one, situation), _sparse(one, situation)
        own[one.name] = few if few != SyncEntry() else many
    starts = [own]
    if _zones_merge(situation):
        starts.append(
            {
                name: replace(entry, exchange=ZONED) if entry.exchange == TREE else entry
                for name, entry in own.items()
            }
        )
    return starts


def _sparse(one: ParameterFacts, situation: Situation) -> SyncEntry:
    """Rows wherever they are few, of the exchange and of the ship."""
    if not one.rows:
        return SyncEntry()
    few = _sent(one, SyncEntry(exchange=ROWS, ship=ROWS), situation)
    whole = _sent(one, _TREE, situation)
    return SyncEntry(
        exchange=ROWS if 0 < few[0] <= SPARSE * whole[0] else TREE,
        ship=ROWS if 0 < few[1] <= SPARSE * whole[1] else DENSE,
    )


def _sent(one: ParameterFacts, entry: SyncEntry, situation: Situation) -> tuple[float, float]:
    """Bytes of the exchange of all pipelines, and of one ship."""
    exchanged = exchange_of(one, entry, situation)
    return float(exchanged.bytes.sum()), ship_of(one, entry, situation).bytes


def _factored(one: ParameterFacts, situation: Situation) -> SyncEntry:
    """Factors wherever they take less time than the whole, of the exchange and of the ship."""
    if not one.rows_k:
        return SyncEntry()
    check_plain(one)
    exchange = TREE
    if situation.pipelines > 1:
        factors, whole = (
            seconds(one, SyncEntry(exchange=kind), situation) for kind in (FACTORS, TREE)
        )
        if factors >= whole:
            return SyncEntry()
        exchange = FACTORS
    few, dense = (SyncEntry(ship=kind) for kind in (FACTORS, DENSE))
    saves = ship_of(one, few, situation).bytes < ship_of(one, dense, situation).bytes
    sooner = ship_seconds(one, few, situation) <= ship_seconds(one, dense, situation)
    ship = FACTORS if saves and sooner else DENSE
    return SyncEntry(exchange=exchange, ship=ship)


def seconds(one: ParameterFacts, entry: SyncEntry, situation: Situation) -> float:
    """The exchange of this parameter alone: on its busiest link or node, whichever takes longer,
    and what its busiest pipeline computes."""
    exchanged = exchange_of(one, entry, situation)
    per_byte, _ = rates(situation, situation.stage_of(one.layer))
    link_s = float((exchanged.bytes * per_byte).max())
    rate = situation.node_bytes_per_s
    node_s = float(exchanged.bytes.sum(axis=1).max()) / rate if rate else 0.0
    work_s = work_seconds(float(exchanged.flops.max()), float(exchanged.added.max()), situation)
    return max(link_s, node_s) + work_s


def ship_seconds(one: ParameterFacts, entry: SyncEntry, situation: Situation) -> float:
    """The ship of this parameter alone: into messages, on its link, or as its node sends, and what
    its shadow computes."""
    shipped = ship_of(one, entry, situation)
    rates = [rate for rate in (situation.bytes_per_s, situation.node_bytes_per_s) if rate]
    sent_s = shipped.bytes / min(rates) if rates else 0.0
    sent_s += situation.copied_s(shipped.bytes)
    return sent_s + work_seconds(shipped.flops, shipped.added, situation)
