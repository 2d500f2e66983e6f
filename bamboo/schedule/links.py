"""Time and messages of a dry run: a queue of what happens when, and links that take their time.

Rule: a directed link between two nodes carries one message at a time. Shipped gradients yield:
they have a lane of their own and delay no other message. Within a node a message takes no time.
Between zones a link may be longer and narrower.
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


class Links(Generic[T]):
    """Things of type T that happen at a time; equal times keep the order in which they came."""

    def __init__(self, *, latency_s: float, bytes_per_s: float, far: Far | None = None) -> None:
        self.now_ns = 0
        self.latency_ns = round(latency_s * 1e9)
        self._near = Link(latency_s=latency_s, bytes_per_s=bytes_per_s)
        self._far = far
        self._queue: list[tuple[int, int, T]] = []
        self._sequence = 0
        self._free_ns: dict[tuple[NodeId, NodeId, bool], int] = {}

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
        lane = (source, to, yields)
        sent_ns = max(self.now_ns, self._free_ns.get(lane, 0)) + carry_ns
        self._free_ns[lane] = sent_ns
        arrives_ns = sent_ns + hops * round(link.latency_s * 1e9)
        if arrives_ns == self.now_ns:
            return True
        self.at(arrives_ns, what)
        return False

    def next_moment(self) -> list[T]:
        """Go on to the next time at which anything happens; all of it, in order. Empty: the end."""
        if not self._queue:
            return []
        self.now_ns = self._queue[0][0]
        out = []
        while self._queue and self._queue[0][0] == self.now_ns:
            out.append(heapq.heappop(self._queue)[2])
        return out
