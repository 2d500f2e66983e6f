"""Makes traces longer or wider than they were recorded.

Rule: pure functions of the trace. Their docstrings name what they add to it; nothing else happens
that did not happen in the trace.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bamboo.errors import InputError
from bamboo.sim.market.trace import MOST_EVENTS, Trace, TraceEvent, seconds_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How often a trace is played to fill a horizon, and what each of its seams adds."""

    plays: int
    """The last play may be cut short; 1: nothing is repeated."""
    comes: int
    """Nodes that come at a seam."""
    goes: int
    """Nodes that go at a seam: the trace has this many more at its end than at its beginning."""


def tiling(trace: Trace, *, hours: float) -> Tiling:
    """The tiling that `tiled` would use."""
    plays = _plays(trace, seconds_in(hours))
    first, last = _there(trace, until_s=0.0), _there(trace, until_s=trace.length_s)
    parts = _cast(first, last) if plays > 1 else {}
    return Tiling(
        plays=plays,
        comes=len(first) - len(parts) if plays > 1 else 0,
        goes=len(last) - len(parts) if plays > 1 else 0,
    )


def tiled(trace: Trace, *, hours: float) -> Trace:
    """The trace for exactly `hours`: a longer one is cut, a shorter one repeated.

    At each seam, a multiple of the trace's length, the nodes alive at the end become those alive at
    the beginning (after the events at time 0). A node that has the same name at both ends continues
    as itself. Then, zone by zone, the remaining nodes, oldest first, take the parts of the missing
    ones in the order in which these came. New nodes, which come at the seam, play the parts that
    are left; nodes without a part go at the seam. That is the only event that did not happen in the
    trace. A node that comes in the second play or later has a name of its own (`node7~2` in the
    second).

    Raises InputError for more than a million events.
    """
    end_s = seconds_in(hours)
    plays = _plays(trace, end_s)
    if plays > 1 and plays * len(trace.events) > MOST_EVENTS:
        raise InputError(
            f"{trace.source}: {trace.length_s:g} s played over {hours:g} h are more than "
            f"{MOST_EVENTS:,} events; give fewer hours, or a longer trace"
        )
    out = [event for event in trace.events if event.at_s <= end_s]
    mark = _mark(trace)
    first = _there(trace, until_s=0.0)
    last = _there(trace, until_s=trace.length_s)
    later = [event for event in trace.events if event.at_s > 0]
    parts = _cast(first, last)
    playing = set(parts.values())
    goes = [name for name in last if name not in playing]
    played_by = {name: name for name in last}
    for play in range(2, plays + 1):
        begin_s = (play - 1) * trace.length_s
        for name in goes:
            out.append(_event(begin_s, played_by[name], last[name], comes=False))
        now = {}
        for name, zone in first.items():
            if name in parts:
                now[name] = played_by[parts[name]]
            else:
                now[name] = f"{name}{mark}{play}"
                out.append(_event(begin_s, now[name], zone, comes=True))
        for event in later:
            at_s = begin_s + event.at_s
            if at_s > end_s:
                break
            if event.comes:
                now[event.node] = f"{event.node}{mark}{play}"
            out.append(_event(at_s, now[event.node], event.zone, comes=event.comes))
        played_by = now
    return Trace(source=trace.source, events=tuple(out), length_s=end_s)


def multiplied(trace: Trace, *, times: int) -> Trace:
    """`times` copies of the trace side by side, `node7` being `node7+1`, `node7+2`, ....

    They come and go at the same times. The nodes, and the losses of an instant, are multiplied by
    `times`, and the hazard of each node stays. One copy is the trace itself. Raises InputError for
    less than one, or more than a million events.
    """
    if times < 1:
        raise InputError(f"{times} copies of {trace.source} are none; give at least 1")
    if times == 1:
        return trace
    if times * len(trace.events) > MOST_EVENTS:
        raise InputError(
            f"{times} copies of {trace.source} are more than {MOST_EVENTS:,} events; give fewer"
        )
    events = tuple(
        _event(event.at_s, f"{event.node}+{copy}", event.zone, comes=event.comes)
        for event in trace.events
        for copy in range(1, times + 1)
    )
    return Trace(source=trace.source, events=events, length_s=trace.length_s)


def scaled(trace: Trace, *, factor: float) -> Trace:
    """The trace in a time that runs `1 / factor` times as fast. Raises ValueError for a factor that
    is not above 0."""
    if not 0 < factor < math.inf:
        raise ValueError(f"no trace is {factor} times as long")
    if factor == 1:
        return trace
    events = tuple(replace(event, at_s=event.at_s * factor) for event in trace.events)
    return Trace(source=trace.source, events=events, length_s=trace.length_s * factor)


def _plays(trace: Trace, end_s: float) -> int:
    if not trace.length_s or not trace.events:
        return 1
    return max(1, math.ceil(end_s / trace.length_s - 1e-9))


def _there(trace: Trace, *, until_s: float) -> dict[str, str]:
    """The nodes alive after the events at `until_s`, oldest first, with their zones."""
    zone_of: dict[str, str] = {}
    for event in trace.events:
        if event.at_s > until_s:
            break
        if event.comes:
            zone_of[event.node] = event.zone
        else:
            del zone_of[event.node]
    return zone_of


def _cast(first: dict[str, str], last: dict[str, str]) -> dict[str, str]:
    """Which node alive at the end plays which node alive at the beginning."""
    parts = {name: name for name, zone in first.items() if last.get(name) == zone}
    idle: dict[str, deque[str]] = {}
    for name, zone in last.items():
        if name not in parts:
            idle.setdefault(zone, deque()).append(name)
    for name, zone in first.items():
        if name not in parts and idle.get(zone):
            parts[name] = idle[zone].popleft()
    return parts


def _mark(trace: Trace) -> str:
    """A text that is in no name of the trace, so that names made with it are new."""
    names: Sequence[str] = [event.node for event in trace.events]
    mark = "~"
    while any(mark in name for name in names):
        mark += "~"
    return mark


def _event(at_s: float, node: str, zone: str, *, comes: bool) -> TraceEvent:
    return TraceEvent(at_s=round(at_s * 1e3) / 1e3, node=node, comes=comes, zone=zone)
