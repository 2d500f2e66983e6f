"""A recorded market as a run plays it: its terms, its seats, and where the run begins in it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bamboo.errors import InputError
from bamboo.sim.market.replay import SeatEvent, replay
from bamboo.sim.market.trace import Trace, read_trace
from bamboo.study.markets import check_time_scale

HOUR_S = 3600.0
TIME_SCALE = 60.0
"""Seconds of the trace in a second, by default: an hour passes in a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTerms:
    """How a run plays its trace."""

    name: str
    """Name of the trace's file."""
    time_scale: float
    """Seconds of the trace in a second."""
    restart_s: float | None
    """Seconds of the trace that each restart is charged, on top of the time that it takes, which
    then counts once; None: that time counts like any other. A restart is a reconfiguration."""
    max_nodes: int
    """Seats: the first so many nodes of the trace are admitted."""
    hours: float | None
    """Hours of the trace after which the run is stopped."""
    begin_s: float
    """Where the run begins in the trace: the first time that there are enough nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A trace and how it is played."""

    terms: TraceTerms
    trace: Trace
    events: tuple[SeatEvent, ...]
    """The events of the seats, in seconds of the trace."""

    @property
    def nodes_at_begin(self) -> int:
        return len(_filled(self.events, until_s=self.terms.begin_s))

    @property
    def end_s(self) -> float:
        """When nothing more happens: at the trace's end, or when the run is stopped."""
        terms = self.terms
        limit_s = terms.begin_s + terms.hours * HOUR_S if terms.hours else math.inf
        return min(self.trace.length_s, limit_s)

    @property
    def preemptions(self) -> int:
        """How many preemptions there are from begin to end."""
        begin_s, end_s = self.terms.begin_s, self.end_s
        return sum(not e.filled and begin_s < e.at_s <= end_s for e in self.events)


def replayed(path: Path, terms: TraceTerms) -> Replayed:
    """The trace of a run, by the terms that were settled for it. Raises InputError."""
    trace = read_trace(path)
    events = replay(trace, seats=terms.max_nodes, time_scale=1.0)
    return Replayed(terms=terms, trace=trace, events=events)


def settle(
    path: Path,
    *,
    time_scale: float,
    restart_s: float | None,
    max_nodes: int,
    hours: float | None,
    needed: int,
) -> Replayed:
    """Read a trace and settle how it is played for a run that needs `needed` nodes to begin.

    Raises InputError for a trace that cannot be played so.
    """
    check_time_scale(time_scale)
    if restart_s is not None and not 0 <= restart_s < math.inf:
        raise InputError(
            f"--restart-seconds {restart_s:g} is no time; give seconds of the trace, or none at all"
        )
    if hours is not None and not 0 < hours < math.inf:
        raise InputError(f"--hours {hours:g} is no time; give hours of the trace, or leave it out")
    if max_nodes < needed:
        raise InputError(
            f"--max-nodes {max_nodes} is too few: cluster.pipelines x cluster.stages = {needed} "
            f"nodes begin; give at least {needed}"
        )
    trace = read_trace(path)
    events = replay(trace, seats=max_nodes, time_scale=1.0)
    begin_s = _begin_s(events, needed)
    if begin_s is None:
        raise InputError(
            f"{path}: never has the {needed} nodes that the run begins with; take another trace, "
            "or fewer cluster.stages"
        )
    terms = TraceTerms(
        name=path.name,
        time_scale=time_scale,
        restart_s=restart_s,
        max_nodes=max_nodes,
        hours=hours,
        begin_s=begin_s,
    )
    return Replayed(terms=terms, trace=trace, events=events)


def _begin_s(events: Iterable[SeatEvent], needed: int) -> float | None:
    filled: set[int] = set()
    for event in events:
        filled.symmetric_difference_update({event.seat})
        if len(filled) >= needed:
            return event.at_s
    return None


def _filled(events: Iterable[SeatEvent], *, until_s: float) -> set[int]:
    filled: set[int] = set()
    for event in events:
        if event.at_s <= until_s:
            filled.symmetric_difference_update({event.seat})
    return filled


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAsked:
    """A recorded market to play a run on, and how."""

    path: Path
    time_scale: float = TIME_SCALE
    restart_s: float | None = None
    """Charged for a restart; None: a restart counts with the time that it takes."""
    max_nodes: int | None = None
    """None: as many as the job may have."""
    hours: float | None = None
    """None: to the run's end."""
