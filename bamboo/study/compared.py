"""What differs between two strategies, in bytes of a step.

Rule: bytes follow from the shapes of the parameters, the placement and the batch. A strategy alone
has no shapes, so they come from what `bamboo plan --json` printed, of either of the two.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bamboo.errors import InputError
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.costs import exchange_of, ship_of
from bamboo.planner.sync.resolved import resolve
from bamboo.planner.sync.situation import Situation
from bamboo.runs.semantics import differences, told
from bamboo.schedule.redundancy import has_replica
from bamboo.study.strategies import REMEDY, Given, read_strategy
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.strategy import Strategy, stage_modes
from bamboo.topology.sync import Sync, SyncEntry

PLACED = ("grid", "cut", "redundancy")
MOST = 2**20
"""Samples of a step, and virtual nodes: every one of these is counted."""
MOST_PIPELINES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How one parameter is synchronised by one of the two."""

    entry: SyncEntry
    exchange_bytes: float
    """What all nodes send of it between pipelines in a step."""
    ship_bytes: float
    """What all owners send of it to their shadows."""

    @property
    def bytes(self) -> float:
        return self.exchange_bytes + self.ship_bytes

    def body(self) -> dict[str, Any]:
        figures = {"exchange_bytes": self.exchange_bytes, "ship_bytes": self.ship_bytes}
        return {**asdict(self.entry), **figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A parameter that goes another way, or costs other bytes."""

    name: str
    shape: tuple[int, ...]
    one: Kept
    other: Kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between two strategies of one model."""

    files: tuple[str, str]
    placed: Mapping[str, tuple[Any, Any]]
    """What differs of grid, cut, redundancy and the bound of all buckets."""
    rules: tuple[dict[str, Any], dict[str, Any]]
    """Both as `Sync.body` has them."""
    parameters: int | None
    """How many are trained; None: neither file says it, and no bytes are known."""
    changed: tuple[Changed, ...] = ()
    totals: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 0.0), (0.0, 0.0))
    """Bytes of exchange and of ship in a step, of all nodes, of each of the two."""

    def body(self) -> dict[str, Any]:
        """The value of `bamboo strategy diff --json`."""
        known = self.parameters is not None
        return {
            "files": list(self.files),
            "placement": {name: list(both) for name, both in self.placed.items()},
            "sync": list(self.rules),
            "parameters": self.parameters,
            "changed": [
                {
                    "name": one.name,
                    "shape": list(one.shape),
                    "a": one.one.body(),
                    "b": one.other.body(),
                }
                for one in self.changed
            ]
            if known
            else None,
            "bytes": [
                {"exchange": exchange, "ship": ship, "all": exchange + ship}
                for exchange, ship in self.totals
            ]
            if known
            else None,
        }


def difference(one: Path, other: Path) -> Difference:
    """What differs between the strategies in two files. Raises InputError where one of them holds
    none, or they are of two models."""
    given, others = read_strategy(one), read_strategy(other)
    model, its = given.strategy.semantics, others.strategy.semantics
    if model.model != its.model:
        differ = ", ".join(
            f"{name} is {told(here)} there and {told(there)} in {other}"
            for name, here, there in differences(model, its)
        )
        raise InputError(f"{one}: is a strategy of another model: {differ}; compare two of one job")
    facts = given.facts or others.facts
    found = Difference(
        files=(str(one), str(other)),
        placed=_placed(given, others),
        rules=(given.placement.sync.body(), others.placement.sync.body()),
        parameters=None,
    )
    if not facts:
        return found
    ours, theirs = _kept(given, facts), _kept(others, facts)
    shapes = {fact.name: fact.shape for fact in facts}
    changed = [
        Changed(name=name, shape=shapes[name], one=ours[name], other=theirs[name])
        for name in ours
        if ours[name] != theirs[name]
    ]
    return replace(
        found,
        parameters=len(ours),
        changed=tuple(sorted(changed, key=lambda x: (-abs(x.one.bytes - x.other.bytes), x.name))),
        totals=(_totals(ours), _totals(theirs)),
    )


def counted_situation(strategy: Strategy) -> Situation:
    """Where a strategy synchronises, as far as bytes depend on it: no rates and no times. Raises
    ValueError for a batch that its virtual nodes cannot share."""
    semantics, placement = strategy.semantics, strategy.placement
    for name in ("batch", "microbatch", "virtual_nodes"):
        if type(number := getattr(semantics, name)) is not int or not 0 < number <= MOST:
            raise ValueError(f"{name} is {number!r}; it is a whole number from 1 to {MOST:,}")
    grid, zones = placement.grid, placement.sync.zones
    if grid.pipelines > MOST_PIPELINES:
        raise ValueError(f"{grid.pipelines:,} pipelines are more than {MOST_PIPELINES:,}")
    zones = zones if len(zones) == grid.pipelines else ()
    modes = stage_modes(placement.redundancy, grid.stages)
    low = semantics.precision == "bf16"
    return Situation(
        cut=placement.cut,
        shares=equal_shares(semantics.virtual_nodes, grid.pipelines),
        microbatches=semantics.batch // (semantics.microbatch * semantics.virtual_nodes),
        zones=zones,
        replica=has_replica(modes[0]),
        factor_bytes=2 if low else 4,
    )


def _kept(given: Given, facts: tuple[ParameterFacts, ...]) -> dict[str, Kept]:
    sync = given.placement.sync
    layers = given.placement.cut[-1]
    try:
        if beyond := [one.name for one in facts if not 0 <= one.layer < layers]:
            raise ValueError(f"{beyond[0]} is in none of the {layers} layers of its cut")
        situation = counted_situation(given.strategy)
        resolved = resolve(sync, facts, situation)
    except ValueError as error:
        raise InputError(f"{given.path}: {error}; {REMEDY}") from error
    count = situation.pipelines
    return {
        one.name: Kept(
            entry=_own_bucket(entry := resolved.entries[one.name], sync),
            exchange_bytes=float(exchange_of(one, entry, situation).bytes.sum()),
            ship_bytes=count * ship_of(one, entry, situation).bytes,
        )
        for one in facts
        if one.trained
    }


def _own_bucket(entry: SyncEntry, sync: Sync) -> SyncEntry:
    """The entry with the bound that a rule gives it; that of the whole strategy is compared by
    itself."""
    return replace(entry, bucket=None) if entry.bucket == sync.bucket else entry


def _totals(kept: Mapping[str, Kept]) -> tuple[float, float]:
    exchange = sum(one.exchange_bytes for one in kept.values())
    return exchange, sum(one.ship_bytes for one in kept.values())


def _placed(one: Given, other: Given) -> dict[str, tuple[Any, Any]]:
    ours, theirs = (
        {**asdict(given.placement), "bucket": given.placement.sync.bucket} for given in (one, other)
    )
    return {x: (ours[x], theirs[x]) for x in (*PLACED, "bucket") if ours[x] != theirs[x]}
