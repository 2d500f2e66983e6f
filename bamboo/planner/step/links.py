"""Time and messages of a dry run: a queue of timed events, and links on which messages take time.

Rule: a directed link between two nodes has two lanes, each of which carries one message at a time.
Shipped gradients yield: they have a lane of their own, begin when all earlier messages have left,
and while both lanes are in use each has half of the link. (`bamboo.runtime.wire.link` does the same
to real messages.) Within a node a message takes no time. A link between zones may have a higher
latency and a lower rate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, TypeAlias

from bamboo.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The costs of a message from one node to another."""

    latency_s: float
    bytes_per_s: float
    """0: a message takes its latency only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneLinks:
    """Links between nodes of different zones."""

    others: Link
    pairs: Mapping[frozenset[str], Link] = field(default_factory=dict)
    """Two zones -> their link, if it differs from the others."""

    def between(self, one: str, other: str) -> Link:
        """The link of two zones, in either direction."""
        return self.pairs.get(frozenset((one, other)), self.others) if self.pairs else self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """Links between zones, and the zone of each node."""

    links: ZoneLinks
    zone_of: Mapping[NodeId, str]

    def between(self, one: NodeId, other: NodeId) -> Link | None:
        """The link of two nodes that are known to be in different zones, else None."""
        zones = self.zone_of
        if one not in zones or other not in zones or zones[one] == zones[other]:
            return None
        return self.links.between(zones[one], zones[other])


class Lanes:
    """One directed link: its costs, until when each of its lanes is in use, and how long the
    yielding lane was delayed."""

    __slots__ = ("bytes_per_s", "free_ns", "latency_ns", "shared_ns", "yielding_free_ns")

    def __init__(self, link: Link) -> None:
        self.latency_ns = round(link.latency_s * 1e9)
        self.bytes_per_s = link.bytes_per_s
        self.free_ns = 0
        self.yielding_free_ns = 0
        self.shared_ns = 0

    def carry_ns(self, size_bytes: float) -> int:
        """How long a message of that size uses a lane of its own."""
        return round(size_bytes / self.bytes_per_s * 1e9) if self.bytes_per_s > 0 else 0

    def sent_ns(self, now_ns: int, carry_ns: int) -> int:
        """When a message that uses a lane for `carry_ns`, given to the link now, has left."""
        sent_ns = self.free_ns
        sent_ns = max(sent_ns, now_ns)
        if (sharing_ns := min(carry_ns, self.yielding_free_ns - sent_ns)) > 0:
            sent_ns += sharing_ns
            self.yielding_free_ns += sharing_ns
            self.shared_ns += sharing_ns
        sent_ns += carry_ns
        self.free_ns = sent_ns
        return sent_ns

    def yielding_sent_ns(self, now_ns: int, carry_ns: int) -> int:
        """Likewise for a yielding message, if nothing else is sent meanwhile."""
        self.yielding_free_ns = max(now_ns, self.free_ns, self.yielding_free_ns) + carry_ns
        return self.yielding_free_ns


Happening: TypeAlias = tuple[Callable[[Any, Any], None], Any, Any]
"""The function of an event, and its two arguments."""


class Links:
    """Timed events; events at equal times keep the order in which they came."""

    def __init__(self, *, latency_s: float, bytes_per_s: float, far: Far | None = None) -> None:
        self.now_ns = 0
        self.latency_ns = round(latency_s * 1e9)
        self._near = Link(latency_s=latency_s, bytes_per_s=bytes_per_s)
        self._far = far
        self._queue: list[tuple[int, int, Happening]] = []
        self._sequence = 0
        self._lanes: dict[tuple[NodeId, NodeId], Lanes] = {}
        self._yielding: dict[int, tuple[Lanes, int]] = {}
        """By sequence number, the yielding messages in transit: the link, and its delay by sharing
        when the time in the queue was correct."""

    def lanes(self, source: NodeId, to: NodeId) -> Lanes | None:
        """The link from one node to another; None if both are the same."""
        if source == to:
            return None
        lanes = self._lanes.get((source, to))
        if lanes is None:
            link = self._far.between(source, to) if self._far is not None else None
            lanes = self._lanes[source, to] = Lanes(link or self._near)
        return lanes

    def at(self, when_ns: int, happens: Happening) -> None:
        """Queue the event for `when_ns`."""
        self._sequence += 1
        heappush(self._queue, (when_ns, self._sequence, happens))

    def carry(
        self, lanes: Lanes | None, carry_ns: int, happens: Happening, *, hops: int = 1
    ) -> None:
        """Queue the event for the arrival of a message that uses its lane for `carry_ns` and is
        sent now, which may be at once; `hops` counts the latencies on its way."""
        arrives_ns = self.now_ns
        if lanes is not None:
            arrives_ns = lanes.sent_ns(self.now_ns, carry_ns) + hops * lanes.latency_ns
        if arrives_ns == self.now_ns:
            tell, whom, what = happens
            tell(whom, what)
            return
        self._sequence += 1
        heappush(self._queue, (arrives_ns, self._sequence, happens))

    def carry_yielding(self, lanes: Lanes | None, carry_ns: int, happens: Happening) -> None:
        """Like `carry`, for a yielding message."""
        arrives_ns = self.now_ns
        if lanes is not None:
            arrives_ns = lanes.yielding_sent_ns(self.now_ns, carry_ns) + lanes.latency_ns
        if lanes is None or arrives_ns == self.now_ns:
            tell, whom, what = happens
            tell(whom, what)
            return
        self.at(arrives_ns, happens)
        self._yielding[self._sequence] = (lanes, lanes.shared_ns)

    def _is_late(self, when_ns: int, sequence: int, happens: Happening) -> bool:
        """Whether a yielding message is due later by now, and was queued again."""
        lanes, known_ns = self._yielding.pop(sequence)
        if lanes.shared_ns == known_ns:
            return False
        self._yielding[sequence] = (lanes, lanes.shared_ns)
        heappush(self._queue, (when_ns + lanes.shared_ns - known_ns, sequence, happens))
        return True

    def next_moment(self) -> list[Happening]:
        """Advance to the next time of any event; returns its events, in order; empty: the end."""
        out: list[Happening] = []
        queue, yielding = self._queue, self._yielding
        while queue and (not out or queue[0][0] == self.now_ns):
            first = heappop(queue)
            if first[1] in yielding and self._is_late(*first):
                continue
            self.now_ns = first[0]
            out.append(first[2])
        return out
