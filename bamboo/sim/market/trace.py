"""Recorded spot markets: when nodes came and went.

Formats, told apart by their content:
    event CSV       one `ms,add|remove,node[,zone]` per line; an optional last line `ms,end`
    alive counts    one `YYYY-MM-DD, HH:MM:SS, alive` per line
                    (both: header, message case, `;`, tabs, further columns as in `trace_rows`)
    availability    JSON {"metadata": {"gap_seconds": n}, "data": [alive, …]}

Rule: every format becomes the same value. An impossible line is an error that names file, line and
reason, and nothing is guessed. Counts do not say which node goes: it is drawn among the present
nodes, with a fixed seed, so that a job that rents a few of many loses them at the same rate as the
others. Zones and the end are our extensions; other readers of event CSV know three fields.
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bamboo.errors import InputError
from bamboo.named_files import read_bounded
from bamboo.sim.market.trace_rows import END, Format, Row, malformed, rows_of, shown

FORMATS = (
    "`ms,add|remove,node[,zone]` lines, `YYYY-MM-DD, HH:MM:SS, alive` lines, or JSON "
    '{"metadata": {"gap_seconds": n}, "data": [alive, ...]}'
)
BACK_S = 120.0
"""Alive counts may go back in time by this much, because some recorders note each count around its
change. Such a line counts at the time of the line before it."""
MOST_NODES = 100_000
"""Nodes alive at once, by a count: each of them becomes an event, however short its line is."""
MOST_EVENTS = 1_000_000
"""The most events that counts may produce: a second or two, and some hundred megabytes."""
LEAST_GAP_S = 0.001
"""The least gap of an availability series, because traces have a resolution of a millisecond."""
WHO_GOES = 0
"""The seed that chooses which node goes when a count falls."""
LONGEST_FILE = 2**26
"""Characters; no recorded market has as many."""
LONGEST_S = 100 * 365 * 86_400.0
"""No recorded market is longer; a later time stamp is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """A node comes or goes, `at_s` seconds after the beginning of the trace."""

    at_s: float
    node: str
    comes: bool
    zone: str = ""
    """The zone of the node, the same in both events; "" if the trace does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    """The number of live nodes at a time."""

    at_s: float
    alive: int
    place: str
    """The place in the file, for errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A recorded market: events in order of time. No node comes twice, or goes without coming."""

    source: str
    events: tuple[TraceEvent, ...]
    length_s: float

    @property
    def preemptions(self) -> int:
        """How many nodes went."""
        return sum(not event.comes for event in self.events)


def seconds_in(hours: float) -> float:
    """Hours in seconds, rounded to the millisecond, which is the resolution of traces."""
    return round(hours * 3_600_000) / 1e3


def read_trace(path: Path) -> Trace:
    """Read a trace in any of the formats. Raises InputError."""
    try:
        text = read_bounded(path, encoding="utf-8-sig", most=LONGEST_FILE)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read as a trace: {error.strerror}; name a file that is there"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: cannot be read as a trace: it is no text; give {FORMATS}"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: cannot be read as a trace: {error}; give {FORMATS}") from error
    return parse_trace(text, path)


def parse_trace(text: str, path: Path) -> Trace:
    """The trace that the text describes; errors name `path`. Raises InputError."""
    if not text.strip():
        raise InputError(f"{path}: is empty; give a trace with at least one line")
    if text.lstrip().startswith("{"):
        return _from_counts(path, _availability(path, text))
    kind, rows = rows_of(path, text, formats=FORMATS)
    if kind is Format.COUNTS:
        return _from_counts(path, _alive_counts(path, rows))
    return _from_events(path, rows)


def _from_events(path: Path, rows: Iterable[Row]) -> Trace:
    events: list[TraceEvent] = []
    zone_of: dict[str, str] = {}
    before_s, ended = 0.0, False
    for row in rows:
        if ended:
            raise malformed(path, row, "the line before is the end; remove one of them")
        ended = row.fields[1] == END
        at_s = _milliseconds(path, row, before_s=before_s)
        if not ended:
            events.append(_event(path, row, at_s=at_s, zone_of=zone_of))
        before_s = at_s
    return Trace(source=str(path), events=tuple(events), length_s=before_s)


def _milliseconds(path: Path, row: Row, *, before_s: float) -> float:
    try:
        at_s = int(row.fields[0]) / 1e3
    except (ValueError, OverflowError) as error:
        raise malformed(
            path, row, "the time is no whole milliseconds; write such as 1500"
        ) from error
    if at_s > LONGEST_S:
        raise malformed(path, row, _too_long())
    if at_s < before_s:
        raise malformed(path, row, "it goes back in time; put the lines in order")
    return at_s


def _event(path: Path, row: Row, *, at_s: float, zone_of: dict[str, str]) -> TraceEvent:
    """The event of a line. `zone_of` holds the present nodes, and is updated."""
    node, comes = row.fields[2], row.fields[1] == "add"
    zone = row.fields[3] if len(row.fields) == 4 else ""
    if comes == (node in zone_of):
        what = "is there already" if comes else "is not there"
        raise malformed(path, row, f"{_name(node)} {what}")
    if comes:
        zone_of[node] = zone
    elif zone not in ("", came := zone_of.pop(node)):
        raise malformed(path, row, f"{_name(node)} came in zone {came or 'unnamed'!r}")
    else:
        zone = came
    return TraceEvent(at_s=at_s, node=node, comes=comes, zone=zone)


def _alive_counts(path: Path, rows: Iterable[Row]) -> Sequence[_Count]:
    out: list[_Count] = []
    first: datetime | None = None
    for row in rows:
        try:
            date, time, alive = row.fields
            stamp = datetime.fromisoformat(f"{date} {time}")
            count = int(alive)
        except ValueError as error:
            raise malformed(path, row, f"write {Format.COUNTS}") from error
        if stamp.tzinfo is not None:
            raise malformed(path, row, "times have no offset here; take one time zone")
        stamp = stamp.replace(tzinfo=UTC)
        if count < 0:
            raise malformed(path, row, "fewer than no nodes are alive")
        first = first or stamp
        since_s = (stamp - first).total_seconds()
        before_s = out[-1].at_s if out else 0.0
        if since_s < before_s - BACK_S:
            raise malformed(path, row, "it goes back in time; put the lines in order")
        if since_s > LONGEST_S:
            raise malformed(path, row, _too_long())
        at_s = max(before_s, since_s)
        out.append(_Count(at_s=at_s, alive=count, place=row.place))
    return out


def _availability(path: Path, text: str) -> Sequence[_Count]:
    try:
        raw = json.loads(text)
        gap_s = _number(raw["metadata"]["gap_seconds"])
        counts = [_whole(count) for count in _listed(raw["data"])]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path}: is no availability series ({error!r}); it needs metadata.gap_seconds and "
            "data, a list of counts"
        ) from error
    if not LEAST_GAP_S <= gap_s < float("inf") or not counts or min(counts) < 0:
        raise InputError(
            f"{path}: gap_seconds = {gap_s} and {len(counts)} counts make no series; the gap must "
            f"be {LEAST_GAP_S:g} or above, and no count below 0"
        )
    if gap_s * len(counts) > LONGEST_S:
        raise InputError(
            f"{path}: {len(counts)} counts with gap_seconds = {gap_s:g} last too long: at most "
            f"{LONGEST_S / 3600:,.0f} h; correct the gap"
        )
    return [
        _Count(at_s=index * gap_s, alive=count, place=f"data[{index}] = {shown(str(count))}")
        for index, count in enumerate(counts)
    ]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{shown(repr(value))} is no number")
    return float(value)


def _whole(value: object) -> int:
    number = _number(value)
    if number != int(number):
        raise ValueError(f"{number:g} is no whole number of nodes")
    return int(number)


def _listed(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise TypeError(f"{shown(repr(value))} is no list")
    return value


def _from_counts(path: Path, counts: Sequence[_Count]) -> Trace:
    events: list[TraceEvent] = []
    here: list[str] = []
    made, chance = 0, random.Random(WHO_GOES)
    for count in counts:
        if count.alive > MOST_NODES:
            raise InputError(
                f"{path}: {count.place}: at most {MOST_NODES:,} nodes may be alive; correct it"
            )
        if len(events) + abs(count.alive - len(here)) > MOST_EVENTS:
            raise InputError(
                f"{path}: {count.place}: more than {MOST_EVENTS:,} nodes have come and gone by "
                "here; give a shorter part of the trace"
            )
        while len(here) < count.alive:
            made += 1
            here.append(f"node{made}")
            events.append(TraceEvent(at_s=count.at_s, node=here[-1], comes=True))
        while len(here) > count.alive:
            goes = chance.randrange(len(here))
            here[goes], here[-1] = here[-1], here[goes]
            events.append(TraceEvent(at_s=count.at_s, node=here.pop(), comes=False))
    return Trace(source=str(path), events=tuple(events), length_s=counts[-1].at_s)


def _too_long() -> str:
    return f"it is more than {LONGEST_S / 3600:,.0f} h after the begin; correct the time"


def _name(node: str) -> str:
    return shown(node if node.isprintable() else repr(node))
