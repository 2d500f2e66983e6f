"""Every parameter of a strategy with the bytes and the time of every kind, like ones together.

Rule: figures and sentences are those of `costs`, `builders` and `why`, for each parameter by
itself: what several share, such as a bucket, changes no bytes. Times are modelled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.builders import choices, ship_seconds
from bamboo.planner.sync.costs import ship_of
from bamboo.planner.sync.situation import Situation
from bamboo.planner.sync.why import BreakEven, Kind, break_even, kinds, rows_of, why
from bamboo.topology.sync import Sync, SyncEntry, entry_of, on_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Parameters that are alike: of one shape and use, and with one entry."""

    names: tuple[str, ...]
    facts: ParameterFacts
    """Of the largest of them."""
    bytes: int
    """Of the gradients of all of them."""
    rows: int
    """Of the input in one pipeline's step, and in the whole step where there is one pipeline; 0:
    it is no plain linear weight."""
    breaks: BreakEven | None
    lately: float | None
    """The mean density of the gradients of the last steps that were recorded; None: unknown."""
    entry: SyncEntry
    """As it is on the grid."""
    exchanges: tuple[Kind, ...]
    """What each kind would cost for one of them; empty with one pipeline."""
    ships: tuple[Kind, ...]
    """What each kind of ship would cost for one of them; empty without a shadow."""
    why: str


def explained(
    sync: Sync,
    facts: Sequence[ParameterFacts],
    situation: Situation,
    *,
    lately: Mapping[str, float] | None = None,
) -> tuple[Row, ...]:
    """A row for each group of trained parameters that are alike, those with most bytes first; all
    vectors with one entry are one group. Where a link has no rate, bytes alone are compared.
    `lately`: name -> density in the last steps."""
    timed = situation.bytes_per_s > 0
    if not timed:
        situation = replace(situation, bytes_per_s=1.0, node_bytes_per_s=0.0, far=None)
        situation = replace(situation, flops_per_s=0.0, added_per_s=0.0)
        situation = replace(situation, copied_bytes_per_s=0.0, message_s=0.0)
    groups: dict[object, list[ParameterFacts]] = {}
    for one in facts:
        if one.trained:
            alike = replace(one, name=one.name.partition(".")[2], layer=0) if one.rows else None
            key = (alike, replace(_entry(sync, one, situation), owner=0))
            groups.setdefault(key, []).append(one)
    rows = [
        _row(sync, members, situation, lately or {}, timed=timed) for members in groups.values()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _row(
    sync: Sync,
    members: Sequence[ParameterFacts],
    situation: Situation,
    lately: Mapping[str, float],
    *,
    timed: bool,
) -> Row:
    one = max(members, key=lambda one: one.bytes)
    entry = _entry(sync, one, situation)
    ships = dict.fromkeys([entry.ship, *(x.ship for x in choices((one,), situation))])
    seen = [lately[x.name] for x in members if x.name in lately]
    rows = rows_of(one, situation)
    return Row(
        names=tuple(x.name for x in members),
        facts=one,
        bytes=sum(x.bytes for x in members),
        rows=rows,
        breaks=break_even(one, situation),
        lately=sum(seen) / len(seen) if seen else None,
        entry=entry,
        exchanges=kinds(one, situation),
        ships=tuple(_ship(one, ship, situation) for ship in ships) if situation.replica else (),
        why=why(one, entry, situation, timed=timed),
    )


def _entry(sync: Sync, one: ParameterFacts, situation: Situation) -> SyncEntry:
    return on_grid(entry_of(sync, one.name), situation.pipelines, sync.zones)


def _ship(one: ParameterFacts, ship: str, situation: Situation) -> Kind:
    entry = SyncEntry(ship=ship)
    return Kind(
        name=ship,
        sent_bytes=ship_of(one, entry, situation).bytes,
        seconds=ship_seconds(one, entry, situation),
    )
