"""The figures of a trace: nodes, preemptions, how many go at once, and how soon they are replaced.

Rule: a pure function of the trace. An instant is one time stamp, and all losses at it count as one.
Nodes that come at time 0 were there before. Nothing is smoothed, and a share of nothing is 0.
"""

import heapq
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from bamboo.sim.market.trace import Trace, TraceEvent

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The number of live nodes from `at_s` on."""

    at_s: float
    alive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """At `at_s` the market took `taken` of the nodes alive before it, in these zones."""

    at_s: float
    taken: int
    alive_before: int
    zones: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneStats:
    """One zone of a trace."""

    zone: str
    peak: int
    mean_nodes: float
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Seconds between one preemption instant and the next; all 0 with fewer than two instants."""

    median_s: float
    mean_s: float
    p90_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStats:
    """A trace in figures."""

    length_s: float
    at_begin: int
    """Nodes alive from the beginning."""
    peak: int
    mean_nodes: float
    node_hours: float
    joins: int
    """Nodes that came after the begin."""
    preemptions: int
    """Nodes that went."""
    preemptions_per_node_hour: float
    instants: int
    """Time stamps at which any node went."""
    bulk: tuple[tuple[int, int], ...]
    """How many instants took this many nodes, by size."""
    bulk_mean: float
    bulk_most: int
    bulk_share: float
    """Share of the instants that took two nodes or more."""
    taken_mean: float
    """Share of the live nodes that an instant took, on average."""
    taken_most: float
    took_all: int
    """Instants that took every node."""
    gaps: Gaps
    back_s: float | None
    """Median time until as many nodes are alive as before an instant; if that never happens, the
    time counts as longer than all others. None if those are half or more, or there is no
    instant."""
    never_back: int
    """Instants after which the trace never again has as many live nodes."""
    zones: tuple[ZoneStats, ...]
    """By name; empty if the trace names no zones."""
    spans: float | None
    """Share of the instants that took nodes of more than one zone; None without two zones."""


def stats(trace: Trace) -> TraceStats:
    """The figures of a trace."""
    levels, found = series(trace), instants(trace)
    area_s = _area_s(levels, trace.length_s)
    sizes = sorted(Counter(one.taken for one in found).items())
    shares = [one.taken / one.alive_before for one in found]
    back, never = _back(levels, found)
    preemptions = trace.preemptions
    zones = _zones(trace)
    spanning = sum(len(one.zones) > 1 for one in found)
    return TraceStats(
        length_s=trace.length_s,
        at_begin=levels[0].alive,
        peak=max(level.alive for level in levels),
        mean_nodes=_mean(levels, trace.length_s),
        node_hours=area_s / HOUR_S,
        joins=sum(event.comes for event in trace.events if event.at_s > 0),
        preemptions=preemptions,
        preemptions_per_node_hour=_ratio(preemptions, area_s / HOUR_S),
        instants=len(found),
        bulk=tuple(sizes),
        bulk_mean=_ratio(preemptions, len(found)),
        bulk_most=max((one.taken for one in found), default=0),
        bulk_share=_ratio(sum(one.taken > 1 for one in found), len(found)),
        taken_mean=_ratio(sum(shares), len(shares)),
        taken_most=max(shares, default=0.0),
        took_all=sum(one.taken == one.alive_before for one in found),
        gaps=_gaps([one.at_s for one in found]),
        back_s=back,
        never_back=never,
        zones=zones,
        spans=_ratio(spanning, len(found)) if len(zones) > 1 else None,
    )


def series(trace: Trace) -> tuple[Level, ...]:
    """Live nodes over time: the first level is that of the beginning, each later one a change."""
    return _series(trace.events)


def instants(trace: Trace) -> tuple[Instant, ...]:
    """When nodes went, in order. Nodes that come at the same time stamp before others go count as
    alive, so that no instant takes more nodes than there are."""
    out: list[Instant] = []
    alive = 0
    for at_s, group in groupby(trace.events, key=lambda event: event.at_s):
        events = tuple(group)
        gone = [event for event in events if not event.comes]
        if gone:
            before = alive + sum(event.comes for event in events[: events.index(gone[0])])
            out.append(
                Instant(
                    at_s=at_s,
                    taken=len(gone),
                    alive_before=max(before, len(gone)),
                    zones=frozenset(event.zone for event in gone),
                )
            )
        alive += len(events) - 2 * len(gone)
    return tuple(out)


def zones_of(trace: Trace) -> tuple[str, ...]:
    """Names of the zones, in order; empty unless every node has one."""
    names = {event.zone for event in trace.events}
    return () if "" in names else tuple(sorted(names))


def _series(events: Iterable[TraceEvent]) -> tuple[Level, ...]:
    out = [Level(at_s=0.0, alive=0)]
    alive = 0
    for at_s, group in groupby(events, key=lambda event: event.at_s):
        alive += sum(1 if event.comes else -1 for event in group)
        if at_s == 0:
            out[0] = Level(at_s=0.0, alive=alive)
        elif alive != out[-1].alive:
            out.append(Level(at_s=at_s, alive=alive))
    return tuple(out)


def _area_s(levels: Sequence[Level], length_s: float) -> float:
    """Node-seconds."""
    ends = [level.at_s for level in levels[1:]] + [length_s]
    return math.fsum(
        level.alive * (end_s - level.at_s) for level, end_s in zip(levels, ends, strict=True)
    )


def _zones(trace: Trace) -> tuple[ZoneStats, ...]:
    names = zones_of(trace)
    events: dict[str, list[TraceEvent]] = {name: [] for name in names}
    for event in trace.events if names else ():
        events[event.zone].append(event)
    return tuple(_zone(name, events[name], trace.length_s) for name in names)


def _zone(name: str, events: Sequence[TraceEvent], length_s: float) -> ZoneStats:
    levels = _series(events)
    return ZoneStats(
        zone=name,
        peak=max(level.alive for level in levels),
        mean_nodes=_mean(levels, length_s),
        preemptions=sum(not event.comes for event in events),
    )


def _gaps(times_s: Sequence[float]) -> Gaps:
    gaps = sorted(later - earlier for earlier, later in pairwise(times_s))
    if not gaps:
        return Gaps(median_s=0.0, mean_s=0.0, p90_s=0.0)
    return Gaps(
        median_s=statistics.median(gaps),
        mean_s=statistics.fmean(gaps),
        p90_s=gaps[math.ceil(0.9 * len(gaps)) - 1],
    )


def _back(levels: Sequence[Level], found: Sequence[Instant]) -> tuple[float | None, int]:
    """The median time until as many nodes are alive again, and the number of instants after which
    they never are."""
    waits = sorted(_waits(levels, found))
    never = len(found) - len(waits)
    padded = waits + [math.inf] * never
    middle = statistics.median(padded) if padded else math.inf
    return (None if math.isinf(middle) else middle), never


def _waits(levels: Sequence[Level], found: Sequence[Instant]) -> Iterator[float]:
    """For each instant after which there are as many nodes again, how long that took."""
    pending: list[tuple[int, float]] = []  # instants to recover from, the lowest count first
    left = [one.at_s for one in found[::-1]]
    before = 0
    for level in levels:
        while left and left[-1] < level.at_s:  # as many came at the very same time stamp
            left.pop()
            yield 0.0
        if left and left[-1] == level.at_s:
            heapq.heappush(pending, (before, left.pop()))
        while pending and pending[0][0] <= level.alive:
            _, since_s = heapq.heappop(pending)
            yield level.at_s - since_s
        before = level.alive
    yield from (0.0 for _ in left)


def _mean(levels: Sequence[Level], length_s: float) -> float:
    return _area_s(levels, length_s) / length_s if length_s else float(levels[-1].alive)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
