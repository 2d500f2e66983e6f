"""A process that reads the log and appends to it: a node, or the launcher.

Rule: each reads with its own delay, in order, and performs each effect addressed to it once, when
it first reads it. Its events wait in order while the store is away, and are repeated to a store
that lost them. A process that had read what the store then lost appends nothing more.
"""

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bamboo.core.events import CaughtUp, Event
from bamboo.errors import CoreMisuse
from testbed.swarm.store import Decision, Entry, Log

if TYPE_CHECKING:
    from testbed.swarm.cluster import Cluster

SLOW_READER = 10.0
"""Factor on the usual delay."""


@dataclass(slots=True)
class Said:
    """An event that was appended, or found stale, at that version of that fill."""

    event: Event
    version: int
    fills: int


class Voice(ABC):
    """One reader and writer of the log."""

    def __init__(self, world: "Cluster", name: str) -> None:
        self.world, self.name = world, name
        self.running = True
        self.stopped = False
        """Its process is stopped."""
        self.cut_off = False
        """It does not reach the store, but everything else."""
        self.refused = False
        """The store refuses its writes, but can be read."""
        self.version = 0
        self.fills = world.log.fills
        self.said: list[Said] = []
        self.outbox: deque[Event] = deque()
        self.late_s = 0.0
        """Delay of its reports."""
        self.dies_speaking = False
        """It dies as soon as its next report is committed, before it reads that."""
        self.read_s = world.read_s()
        self._posting = False
        self._reading = False

    @property
    def awake(self) -> bool:
        return self.running and not self.stopped

    @property
    def mute(self) -> bool:
        """Whether it can neither write nor read."""
        return self.stopped or self.cut_off

    @property
    def can_write(self) -> bool:
        """Whether the store takes its writes."""
        return not self.mute and not self.refused and self.world.log.takes

    @property
    def void(self) -> bool:
        """Whether it has read what the store lost, and does not know of the loss yet."""
        log = self.world.log
        return self.fills != log.fills and self.version > min(log.kept[self.fills + 1 :])

    # ---------------------------------------------------------------- append

    def say(self, event: Event) -> None:
        """Append the event, after all earlier ones."""
        self.outbox.append(event)
        if not self._posting:
            self._posting = True
            self.world.agenda.after(self.world.say_s() + self.late_s, self._post)

    def _post(self) -> None:
        if not self.running:
            return
        log = self.world.log
        if not self.can_write:
            self._posting = False
            if not self.mute and not self.refused:
                log.when_there(self.post_on)
            return
        if not self.outbox:
            self._posting = False
            return
        decision = self._decide(self.outbox.popleft())
        if decision is None:
            self._posting = False
        elif self.world.scenario.commit_s:
            self.world.agenda.after(self.world.commit_s(), self._commit, decision)
        else:
            self._commit(decision)

    def post_on(self) -> None:
        """Continue with the events that wait."""
        if self.outbox and not self._posting:
            self._posting = True
            self.world.agenda.after(self.world.say_s() + self.late_s, self._post)

    def _commit(self, decision: Decision) -> None:
        log = self.world.log
        if not self.running:
            return
        if not self.can_write or not log.commit(self.name, decision):
            self.outbox.appendleft(decision.event)
            self._post()  # another commit was first, so the event is decided again
            return
        self.said.append(Said(decision.event, log.state.version, log.fills))
        changed = decision.decided.state is not decision.before
        scenario = self.world.scenario
        if scenario.twice and self.world.chance(scenario.twice):
            delay_s = self.world.uniform(0.0, scenario.twice_s)
            self.world.agenda.after(delay_s, self._append, decision.event)
        if changed and self.dies_speaking:
            self.die()
            return
        if self.outbox:
            self.world.agenda.after(self.world.say_s() + self.late_s, self._post)
        else:
            self._posting = False

    def say_apart(self, event: Event) -> None:
        """Append the event from a thread of its own: before or after other events."""
        self.world.agenda.after(self.world.say_s() + self.late_s, self._append, event)

    def say_at_once(self, event: Event) -> None:
        """Append the event now, or not at all: the reporter will judge again."""
        self.world.agenda.after(self.world.say_s() + self.late_s, self._append_once, event)

    def _append_once(self, event: Event) -> None:
        if self.can_write:
            self._append(event)

    def _append(self, event: Event) -> None:
        log = self.world.log
        if not self.running:
            return
        if not self.can_write:
            self.world.agenda.after(1.0, self._append, event)
            return
        if _means_another(event, log):
            return
        decision = self._decide(event)
        if decision is not None:
            log.commit(self.name, decision)
            self.said.append(Said(event, log.state.version, log.fills))

    def _decide(self, event: Event) -> Decision | None:
        """The decision on an event. An impossible event may belong to a history that the store has
        lost; its author will soon find that out, and end."""
        try:
            return self.world.log.decide(event, self.world.now_s)
        except CoreMisuse:
            if not self.void:
                raise
            return None

    # ---------------------------------------------------------------- read

    def hear(self) -> None:
        """There are new entries to read."""
        if not self._reading:
            self._reading = True
            self.world.agenda.after(self.read_s, self._read_all)

    def _read_all(self) -> None:
        self._reading = False
        log = self.world.log
        if not self.running or self.mute:
            return
        if not log.there:
            log.when_there(self.hear)
            return
        if self.fills != log.fills:
            if self.void:
                self.overtaken()
                return
            self._say_again()
        for entry in log.entries[self.version :]:
            self.version = entry.version
            self.read(entry)
            if not self.running:
                return

    def _say_again(self) -> None:
        """Repeat the events that a store lost, before all others."""
        log = self.world.log
        lost = [s for s in self.said if s.version > min(log.kept[s.fills + 1 :], default=s.version)]
        self.said = [s for s in self.said if s not in lost]
        self.fills = log.fills
        self.outbox.extendleft(s.event for s in reversed(lost))
        self.post_on()

    @abstractmethod
    def read(self, entry: Entry) -> None:
        """Read a decision, and perform the effects addressed here."""

    @abstractmethod
    def die(self) -> None:
        """The process ends without a message."""

    @abstractmethod
    def overtaken(self) -> None:
        """The store lost decisions that were read here: they no longer count."""


def _means_another(event: Event, log: Log) -> bool:
    """Whether a repeated event would be taken for another one. CaughtUp does not say which of two
    takeovers of one slot by one node it is about, and a real store never makes a node repeat it
    then."""
    return isinstance(event, CaughtUp) and any(
        (failover.slot, failover.successor) == (event.slot, event.node)
        for failover in log.state.failovers
    )
