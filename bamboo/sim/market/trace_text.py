"""A trace as text, in each of the formats that `bamboo.sim.market.trace` reads.

Rule: event CSV keeps all that a trace says, to the millisecond. The other two formats count the
live nodes at a time, so they lose a node that comes while another goes, and all zones.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from bamboo.errors import InputError
from bamboo.sim.market.trace import LONGEST_S, Trace
from bamboo.sim.market.trace_stats import Level, series

DAY_ONE = datetime(2000, 1, 1, tzinfo=UTC)
"""Counts need a date, and a trace has none."""
GAP_S = 60.0
"""The default gap of an availability series: the grain of the published traces."""
MOST_COUNTS = 1_000_000


def write_events(trace: Trace) -> str:
    """Event CSV; with an `end` line if the trace lasts longer than its last event."""
    lines = [
        f"{_ms(event.at_s)},{'add' if event.comes else 'remove'},{event.node}"
        + (f",{event.zone}" if event.zone and event.comes else "")
        for event in trace.events
    ]
    last_ms = _ms(trace.events[-1].at_s) if trace.events else -1
    if _ms(trace.length_s) > last_ms:
        lines.append(f"{_ms(trace.length_s)},end")
    return "".join(f"{line}\n" for line in lines)


def write_counts(trace: Trace, *, gap_s: float | None = None) -> str:
    """Alive counts: a line for each change and one for the end, or one every `gap_s` seconds.

    Raises InputError for a gap that gives no counts, or too many.
    """
    if gap_s is None:
        levels = list(series(trace))
        if levels[-1].at_s < trace.length_s:
            levels.append(Level(at_s=trace.length_s, alive=levels[-1].alive))
    else:
        levels = _sampled(trace, gap_s)
    return "".join(f"{_stamp(level.at_s)}, {level.alive}\n" for level in levels)


def write_series(trace: Trace, *, gap_s: float | None = None) -> str:
    """An availability series: the count every `gap_s` seconds, from the begin to the end.

    Raises InputError for a gap that gives no counts, or too many.
    """
    gap_s = GAP_S if gap_s is None else gap_s
    counts = [level.alive for level in _sampled(trace, gap_s)]
    gap: float | int = int(gap_s) if gap_s == int(gap_s) else gap_s
    return json.dumps({"metadata": {"gap_seconds": gap}, "data": counts}) + "\n"


def _events_only(trace: Trace, *, gap_s: float | None = None) -> str:
    if gap_s is not None:
        raise InputError(
            f"--gap-seconds {gap_s:g}: events have no gap; leave it out, or take --to counts or "
            "--to json"
        )
    return write_events(trace)


WRITERS: Mapping[str, Callable[..., str]] = {
    "events": _events_only,
    "counts": write_counts,
    "json": write_series,
}


def _sampled(trace: Trace, gap_s: float) -> list[Level]:
    if not 0 < gap_s <= LONGEST_S:
        raise InputError(f"--gap-seconds {gap_s:g} is no gap; give seconds above 0, such as 60")
    if trace.length_s / gap_s > MOST_COUNTS - 1:
        raise InputError(
            f"--gap-seconds {gap_s:g}: {trace.length_s / 3600:g} h are more than "
            f"{MOST_COUNTS:,} counts; give a larger gap"
        )
    last = -int(-trace.length_s // gap_s)  # the first count at or after the end
    levels = series(trace)
    times = [level.at_s for level in levels]
    return [
        Level(at_s=i * gap_s, alive=levels[bisect_right(times, i * gap_s) - 1].alive)
        for i in range(last + 1)
    ]


def _stamp(at_s: float) -> str:
    moment = DAY_ONE + timedelta(milliseconds=_ms(at_s))
    whole = f"{moment:%Y-%m-%d, %H:%M:%S}"
    return f"{whole}.{moment.microsecond // 1000:03}" if moment.microsecond else whole


def _ms(at_s: float) -> int:
    return round(at_s * 1e3)
