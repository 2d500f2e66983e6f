"""A spot market and the nodes that a job rents of it, on which a system trains.

    trace (capacity)  ->  World (rents, boots, bills)  ->  System (decides)  ->  Progress (steps)

Rule: the world knows no rule of any system. It tells a system which of its nodes are up, warned or
gone, asks how many it wants, and rents as many of those that the market has. All randomness is in
the trace and in one seed.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from bamboo.ids import NodeId, ZoneId
from bamboo.sim.boundaries import Boundaries
from bamboo.sim.free_nodes import FreeNodes, Renting
from bamboo.sim.kernel import Kernel
from bamboo.sim.market.trace import Trace
from bamboo.sim.progress import Progress

PREEMPTION = "preemption"
FAILOVER = "failover"
HAND_OVER = "hand-over"
RECONFIGURATION = "reconfiguration"
RESTORE = "restore"
END = "end"
RESIZE = "resize"
FIRST, LAST = -1, 1
"""Priorities at one time: the market moves before any system answers, and the fleet is checked
after all reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of the market for a renter."""

    boot_s: float = 45.0
    """Time from an instance's start to its node. Nodes at the beginning of the trace are up at
    once. The default is the published simulator's (Thorpe et al., Bamboo, NSDI 2023)."""
    notice_s: float = 0.0
    """Time between a node's notice and its loss; 0: there are no notices."""


@dataclass(slots=True, kw_only=True)
class Rental:
    """One instance, from its start to its end, in times of the world."""

    node: NodeId
    zone: ZoneId
    from_s: float
    until_s: float | None = None
    interrupted: bool = False
    """Whether the market took it."""
    up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of the world from `at_s` on, for the picture."""

    at_s: float
    rented: int
    steps: float
    """Steps done by then, including the part of the present step."""
    kind: str = ""
    """The kind of event then, such as `failover`; "": only a change."""
    said: str = ""


class System(Protocol):
    """The system that trains: it is told what happens to its nodes, and sets the progress."""

    def wanted(self) -> int:
        """How many nodes it wants now."""

    def joined(self, node: NodeId, zone: ZoneId) -> None:
        """A node is up."""

    def noticed(self, node: NodeId, deadline_s: float) -> None:
        """A node that is up will be taken."""

    def lost(self, node: NodeId) -> None:
        """A node that was up is gone."""

    def spare(self) -> NodeId | None:
        """A node that it can give back, if it has more than it wants."""


@dataclass(slots=True)
class World:
    """Plays a trace for one system, until `horizon_s` or until the last step is done."""

    trace: Trace
    terms: Terms
    horizon_s: float
    last_step: float = math.inf
    renting: Renting = field(default_factory=Renting)
    kernel: Kernel = field(default_factory=Kernel)
    counts: Counter[str] = field(default_factory=Counter)
    """Number of events, by name; each system counts those that it knows."""
    rentals: list[Rental] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    crossed_bytes: float = 0.0
    """Bytes sent between zones so far."""
    crossed_by: list[tuple[float, float]] = field(default_factory=list)
    """(seconds, bytes until then), whenever the rate changes, for the picture."""
    ended: str = ""
    """Why it was over before the horizon."""
    keep_moments: bool = True
    progress: Progress = field(init=False)
    boundaries: Boundaries = field(init=False)
    _system: System | None = field(init=False, default=None)
    _free: FreeNodes = field(init=False)
    _rented: dict[str, Rental] = field(init=False, default_factory=dict)
    """Rentals that have not ended, by the trace's name."""
    _rented_in: Counter[ZoneId] = field(init=False, default_factory=Counter)
    """The number of them in each zone."""
    _name_of: dict[NodeId, str] = field(init=False, default_factory=dict)
    _next: int = field(init=False, default=0)
    _next_notice: int = field(init=False, default=0)
    _crossing: float = field(init=False, default=0.0)
    _crossing_since: float = field(init=False, default=0.0)
    """In steps."""
    _look_due: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.progress = Progress(self.kernel, last_step=self.last_step)
        self.boundaries = Boundaries(self.kernel, self.progress)
        self._free = FreeNodes(self.renting)
        if not math.isinf(self.last_step):
            self.boundaries.when(int(self.last_step), self._all_done)

    def play(self, system: System) -> None:
        """Run the whole world."""
        self._system = system
        if self.trace.events:
            self.kernel.at(self.trace.events[0].at_s, self._market, priority=FIRST)
        if self.terms.notice_s > 0:
            self._warn()
        self.kernel.run(until_s=self.horizon_s, over=lambda: bool(self.ended))
        self.note()
        self.crosses(0.0)
        for rental in self._rented.values():
            rental.until_s = self.kernel.now_s

    def _all_done(self) -> None:
        self.end(f"all {self.last_step:,.0f} steps are done")

    def end(self, why: str) -> None:
        """Stop the world."""
        self.ended = self.ended or why

    @property
    def system(self) -> System:
        assert self._system is not None, "asked only while a world is played"
        return self._system

    @property
    def rented(self) -> int:
        """Number of instances that are paid for now."""
        return len(self._rented)

    def hired(self) -> list[Rental]:
        """The instances that are paid for now."""
        return list(self._rented.values())

    @property
    def capacity(self) -> int:
        """Number of nodes that the market has now, rented or not."""
        return len(self._rented) + len(self._free)

    def note(self, kind: str = "", said: str = "") -> None:
        """Record this moment for the picture."""
        if self.keep_moments:
            moment = Moment(
                at_s=self.kernel.now_s,
                rented=self.rented,
                steps=self.progress.steps,
                kind=kind,
                said=said,
            )
            self.moments.append(moment)

    def happened(self, kind: str, said: str = "") -> None:
        """Record this moment and count it."""
        self.counts[kind] += 1
        self.note(kind, said)

    def look(self) -> None:
        """Rent or release, after all events of this time."""
        if not self._look_due:
            self._look_due = True
            self.kernel.after(0.0, self._rent, priority=LAST)

    def crosses(self, bytes_per_step: float) -> None:
        """From now on each step sends this many bytes between zones."""
        steps = self.progress.steps
        self.crossed_bytes += self._crossing * max(0.0, steps - self._crossing_since)
        self._crossing = bytes_per_step
        self._crossing_since = steps
        if self.keep_moments:
            self.crossed_by.append((self.kernel.now_s, self.crossed_bytes))

    def sends(self, size_bytes: float) -> None:
        """Bytes that are sent between zones now, in addition to those of steps."""
        self.crosses(self._crossing)
        self.crossed_bytes += size_bytes

    def release(self, node: NodeId) -> None:
        """The system ends an instance; the market may rent it out again."""
        name = self._name_of.pop(node, None)
        if name is not None:
            rental = self._rented.pop(name)
            self._rented_in[rental.zone] -= 1
            rental.until_s = self.kernel.now_s
            self._free.add(name, rental.zone)
            self.look()

    # ---------------------------------------------------------------- the market

    def _market(self) -> None:
        """Process all events of the trace at this time, and queue the next ones."""
        events, now_s = self.trace.events, self.kernel.now_s
        while self._next < len(events) and events[self._next].at_s <= now_s:
            event = events[self._next]
            self._next += 1
            if event.comes:
                self._free.add(event.node, ZoneId(event.zone))
            else:
                self._take(event.node)
        if self._next < len(events):
            self.kernel.at(events[self._next].at_s, self._market, priority=FIRST)
        self.look()

    def _warn(self) -> None:
        """Send notices of the losses that are `notice_s` away, and queue the next ones."""
        events, now_s = self.trace.events, self.kernel.now_s
        while self._next_notice < len(events):
            event = events[self._next_notice]
            at_s = max(0.0, event.at_s - self.terms.notice_s)
            if not event.comes and at_s > now_s:
                self.kernel.at(at_s, self._warn)
                return
            self._next_notice += 1
            rental = None if event.comes else self._rented.get(event.node)
            if rental is not None and rental.up:
                self.system.noticed(rental.node, event.at_s)

    def _take(self, name: str) -> None:
        rental = self._rented.pop(name, None)
        if rental is None:
            self._free.drop(name)
            return
        self._rented_in[rental.zone] -= 1
        rental.until_s = self.kernel.now_s
        rental.interrupted = True
        self._name_of.pop(rental.node)
        self.happened(PREEMPTION)
        if rental.up:
            self.system.lost(rental.node)

    def _rent(self) -> None:
        self._look_due = False
        wanted = self.system.wanted()
        while self._free and len(self._rented) < wanted:
            self._start(*self._free.take(self._rented_in, self.kernel.now_s))
        if len(self._rented) > wanted:
            spare = self.system.spare()
            if spare is not None and spare in self._name_of:
                self.release(spare)
                self.system.lost(spare)  # the next one follows when the system knows of this loss

    def _start(self, name: str, zone: ZoneId) -> None:
        now_s = self.kernel.now_s
        node = NodeId(f"n{len(self.rentals):05}.1")
        rental = Rental(node=node, zone=zone, from_s=now_s)
        self.rentals.append(rental)
        self._rented[name] = rental
        self._rented_in[zone] += 1
        self._name_of[node] = name
        self.note()
        delay_s = self.terms.boot_s if now_s > 0 else 0.0
        self.kernel.after(delay_s, lambda: self._boot(rental))

    def _boot(self, rental: Rental) -> None:
        if rental.until_s is None:
            rental.up = True
            self.system.joined(rental.node, rental.zone)

    # ---------------------------------------------------------------- figures

    def node_seconds(self) -> float:
        """Node-seconds that were paid for, so far."""
        now_s = self.kernel.now_s
        return sum((now_s if r.until_s is None else r.until_s) - r.from_s for r in self.rentals)
