"""Time and messages of a dry run: a queue of what happens when, and links that take their time.

Rule: a directed link between two nodes has two lanes, each of which carries one message at a time.
Shipped gradients yield: they have a lane of their own, begin when all that was sent before has
left, and while both lanes have something each has half of the link. (`bamboo.runtime.link` does the
same to real messages.) Within a node a message takes no time. Between zones a link may be longer
and narrower.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from bamboo.ids import NodeId

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a message takes from one node to another."""

    latency_s: float
    bytes_per_s: float
    """0: a message takes its latency only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneLinks:
    """Links between nodes of different zones."""

    others: Link
    pairs: Mapping[frozenset[str], Link] = field(default_factory=dict)
    """Two zones -> their link, where it is unlike the others."""

    def between(self, one: str, other: str) -> Link:
        """The link of two zones, in either direction."""
        return self.pairs.get(frozenset((one, other)), self.others) if self.pairs else self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """Links between zones, and where each node is."""

    links: ZoneLinks
    zone_of: Mapping[NodeId, str]

    def between(self, one: NodeId, other: NodeId) -> Link | None:
        """The link of two nodes that are known to be in different zones, else None."""
        zones = self.zone_of
        if one not in zones or other not in zones or zones[one] == zones[other]:
            return None
        return self.links.between(zones[one], zones[other])


@dataclass(slots=True)
class _Lanes:
    """Until when each lane of one link is taken, and how long that of what yields was held up."""

    free_ns: int = 0
    yielding_free_ns: int = 0
    shared_ns: int = 0


class Links(Generic[T]):
    """Things of type T that happen at a time; equal times keep the order in which they came."""

    def __init__(self, *, latency_s: float, bytes_per_s: float, far: Far | None = None) -> None:
        self.now_ns = 0
        self.latency_ns = round(latency_s * 1e9)
        self._near = Link(latency_s=latency_s, bytes_per_s=bytes_per_s)
        self._far = far
        self._queue: list[tuple[int, int, T]] = []
        self._sequence = 0
        self._lanes: dict[tuple[NodeId, NodeId], _Lanes] = {}
        self._yielding: dict[int, tuple[_Lanes, int]] = {}
        """By sequence, what yields and is under way: its link, and for how long that had been
        shared when its time in the queue was right."""

    def at(self, when_ns: int, what: T) -> None:
        """Let `what` happen at `when_ns`."""
        self._sequence += 1
        heapq.heappush(self._queue, (when_ns, self._sequence, what))

    def carry(
        self,
        source: NodeId,
        to: NodeId,
        what: T,
        size_bytes: float,
        *,
        hops: int = 1,
        yields: bool = False,
    ) -> bool:
        """Let `what` happen when a message of that size, sent now, has arrived; `hops` counts the
        latencies on its way. True: it has arrived at this very moment, and is not queued."""
        if source == to:
            return True
        link = (self._far.between(source, to) if self._far is not None else None) or self._near
        carry_ns = round(size_bytes / link.bytes_per_s * 1e9) if link.bytes_per_s > 0 else 0
        lanes = self._lanes.get((source, to))
        if lanes is None:
            lanes = self._lanes[source, to] = _Lanes()
        begin_ns = max(self.now_ns, lanes.free_ns)
        if yields:
            sent_ns = max(begin_ns, lanes.yielding_free_ns) + carry_ns
            lanes.yielding_free_ns = sent_ns
        else:
            sharing_ns = min(carry_ns, max(0, lanes.yielding_free_ns - begin_ns))
            sent_ns = begin_ns + carry_ns + sharing_ns
            lanes.free_ns = sent_ns
            lanes.yielding_free_ns += sharing_ns
            lanes.shared_ns += sharing_ns
        arrives_ns = sent_ns + hops * round(link.latency_s * 1e9)
        if arrives_ns == self.now_ns:
            return True
        self.at(arrives_ns, what)
        if yields:
            self._yielding[self._sequence] = (lanes, lanes.shared_ns)
        return False

    def _pop(self) -> T | None:
        """What comes first; None: it is due later by now, and was put back."""
        when_ns, sequence, what = heapq.heappop(self._queue)
        lanes, known_ns = self._yielding.pop(sequence, (None, 0))
        if lanes is None or lanes.shared_ns == known_ns:
            return what
        self._yielding[sequence] = (lanes, lanes.shared_ns)
        heapq.heappush(self._queue, (when_ns + lanes.shared_ns - known_ns, sequence, what))
        return None

    def next_moment(self) -> list[T]:
        """Go on to the next time at which anything happens; all of it, in order. Empty: the end."""
        out: list[T] = []
        while self._queue and (not out or self._queue[0][0] == self.now_ns):
            when_ns = self._queue[0][0]
            what = self._pop()
            if what is not None:
                self.now_ns = when_ns
                out.append(what)
        return out
