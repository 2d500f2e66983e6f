"""Why a parameter is synchronised as it is, and from how many rows on factors do not pay.

Rule: sentences over figures of `costs` and `builders`; nothing is decided here.
"""

from dataclasses import dataclass, replace
from math import ceil

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.builders import seconds, ship_seconds
from bamboo.planner.sync.costs import exchange_of, ship_of
from bamboo.planner.sync.flows import partials_of
from bamboo.planner.sync.situation import Situation
from bamboo.quantities import size
from bamboo.topology.sync import DENSE, FACTORS, OWNER, ROWS, TREE, ZONED, SyncEntry, on_grid

ENDLESS = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The rows of a pipeline's step up to which factors are cheaper than `tree`; of the ship with
    one pipeline, those of the whole step."""

    timed: float
    """With the products that the receivers form; `inf`: always."""
    by_bytes: float
    """By bytes alone, which is too high on slow devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What one kind of exchange or of ship would cost for one parameter."""

    name: str
    sent_bytes: float
    """What the busiest node sends in the exchange or, of a kind of ship, an owner to its shadow."""
    seconds: float
    """How long the link and the work take for this parameter alone."""


def rows_of(one: ParameterFacts, situation: Situation) -> int:
    """Rows of the linear layer's input in one pipeline's step: in the busiest one."""
    own = partials_of(situation.shares, situation.microbatches).totals
    return int(one.rows_k * own.max())


def break_even(one: ParameterFacts, situation: Situation) -> BreakEven | None:
    """The break-even of a parameter; None for one that is no plain linear weight. The number of
    microbatches stays, and each has more or fewer rows."""
    if not one.rows_k:
        return None
    if situation.pipelines == 1:
        total = one.rows_k * situation.total
        few, whole = (ship_of(one, SyncEntry(ship=x), situation) for x in (FACTORS, DENSE))
        if not few.bytes:
            return None
        by_bytes = total * whole.bytes / few.bytes
        return BreakEven(timed=_even(one, situation, total), by_bytes=by_bytes)
    rows = rows_of(one, situation)
    few_bytes, whole_bytes = (_exchanged_bytes(one, kind, situation) for kind in (FACTORS, TREE))
    return BreakEven(timed=_even(one, situation, rows), by_bytes=rows * whole_bytes / few_bytes)


def kinds(one: ParameterFacts, situation: Situation) -> tuple[Kind, ...]:
    """Every kind of exchange that the parameter may have, with its bytes and time."""
    found = []
    for name in (TREE, OWNER, ZONED, ROWS, FACTORS):
        wants = SyncEntry(exchange=name)
        if (
            situation.pipelines == 1
            or on_grid(wants, situation.pipelines, situation.zones) != wants
        ):
            continue
        if (name == FACTORS and not one.rows_k) or (name == ROWS and not one.rows):
            continue
        sent = _exchanged_bytes(one, name, situation)
        found.append(Kind(name=name, sent_bytes=sent, seconds=seconds(one, wants, situation)))
    return tuple(found)


def why(one: ParameterFacts, entry: SyncEntry, situation: Situation, *, timed: bool = True) -> str:
    """A sentence or two: why a parameter goes as `entry` says, which is as it is on the grid, or
    that another kind was to be expected. Not `timed`: links have no rate, and bytes are
    compared."""
    if not one.trained:
        return "It is frozen, so it has no gradient."
    return _why(one, entry, situation, timed=timed) + _ship_too(one, entry, situation, timed=timed)


def _why(one: ParameterFacts, entry: SyncEntry, situation: Situation, *, timed: bool) -> str:
    rows, even = rows_of(one, situation), break_even(one, situation)
    if situation.pipelines == 1:
        rows = one.rows_k * situation.total
    less = "cheaper" if timed else "fewer bytes"
    alone = " for it alone" if timed else ""
    if FACTORS in (entry.exchange, entry.ship) and even is not None:
        if rows > max(even.timed, even.by_bytes):
            said = f"dense would be {less}{alone}"
            return f"K is {rows:,} rows, more than the break-even of {_rows(even)}: {said}."
        if rows > even.timed:
            return (
                f"K is {rows:,} rows, more than the break-even of {_rows(even)} for it alone; in a "
                "step its fewer bytes leave the link to others."
            )
        return (
            f"K is {rows:,} rows, fewer than the break-even of {_rows(even)}: factors are {less}."
        )
    if ROWS in (entry.exchange, entry.ship):
        exchanged = entry.exchange == ROWS and situation.pipelines > 1
        return f"{_set(one)}: {_in_place(one, situation, exchanged=exchanged)}."
    if entry.exchange == OWNER:
        return f"Pipeline {entry.owner} sums it whole: two messages in place of one a shard."
    if entry.exchange == ZONED:
        return "Pipelines of a zone add what they have first, so fewer bytes cross zones."
    if even is not None:
        if rows > even.timed:
            return (
                f"K is {rows:,} rows, more than the break-even of {_rows(even)}: dense is {less}."
            )
        said = f"factors would be {less}{alone}"
        return f"K is {rows:,} rows, no more than the break-even of {_rows(even)}: {said}."
    if one.density < 1 and one.rows:
        if _time(one, ROWS, situation) >= _time(one, TREE, situation):
            return f"{_set(one)}: to send these alone would not be {less}."
        few = _in_place(one, situation, exchanged=situation.pipelines > 1)
        return f"{_set(one)}: to send these alone would be {less}, {few}."
    if not one.rows:
        return "A vector goes whole."
    return f"It {one.why_not or 'is used in no known way'}, so it goes whole."


def _ship_too(one: ParameterFacts, entry: SyncEntry, situation: Situation, *, timed: bool) -> str:
    """That the kind of the exchange would do for the ship as well, where that goes whole."""
    kind = entry.exchange
    if not situation.replica or situation.pipelines == 1:
        return ""
    if entry.ship != DENSE or kind not in (ROWS, FACTORS):
        return ""
    few_s, whole_s = (ship_seconds(one, SyncEntry(ship=x), situation) for x in (kind, DENSE))
    if few_s >= whole_s:
        return ""
    less = "cheaper for it alone" if timed else "fewer bytes"
    return f" Its ship goes whole; by {kind} it would be {less}."


def _set(one: ParameterFacts) -> str:
    return f"A step sets bits in {one.step_density:.1%} of its {one.rows:,} rows"


def _in_place(one: ParameterFacts, situation: Situation, *, exchanged: bool) -> str:
    """What the busiest node sends of its rows, or what is shipped of them."""
    if not exchanged:
        few = ship_of(one, SyncEntry(ship=ROWS), replace(situation, replica=True))
        return f"{size(few.bytes)} in place of {size(one.bytes)}"
    rows, whole = (_exchanged_bytes(one, kind, situation) for kind in (ROWS, TREE))
    return f"{size(rows)} in place of {size(whole)}"


def _exchanged_bytes(one: ParameterFacts, kind: str, situation: Situation) -> float:
    return float(exchange_of(one, SyncEntry(exchange=kind), situation).bytes.sum(axis=1).max())


def _rows(even: BreakEven) -> str:
    if even.timed == ENDLESS:
        return "any number"
    timed, by_bytes = (f"{rows:,.0f}" for rows in (even.timed, even.by_bytes))
    return timed if timed == by_bytes else f"{timed} ({by_bytes} by bytes alone)"


def _even(one: ParameterFacts, situation: Situation, rows: int) -> float:
    """The rows at which factors take as long as `tree`. Their time is linear in the rows in two
    pieces, which meet at `Situation.least_rows`."""
    whole = _time(one, TREE, situation)
    least = ceil(situation.least_rows)
    found = 0.0
    for first, second in ((max(1, least // 2), max(2, least)), (least + 1, 2 * least + 2)):
        of_first, of_second = (
            _time(replace(one, rows_k=many), FACTORS, situation) for many in (first, second)
        )
        each = (of_second - of_first) / (second - first)
        if each <= 0:
            found = ENDLESS if of_first <= whole else 0.0
        else:
            found = max(0.0, first + (whole - of_first) / each)
        if found <= least:
            break
    return found * rows / one.rows_k


def _time(one: ParameterFacts, kind: str, situation: Situation) -> float:
    if situation.pipelines > 1:
        return seconds(one, SyncEntry(exchange=kind), situation)
    return ship_seconds(one, SyncEntry(ship=DENSE if kind == TREE else kind), situation)
