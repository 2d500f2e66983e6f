"""The virtual link: a message arrives when a link of the given speed would have delivered it.

The sender stamps each message with its due time on the host's monotonic clock; the receiver holds
it until then. There is one link for each ordered pair of nodes. It has two lanes, and in each lane
the bytes go one after the other; while both have some, each gets half of the link's bandwidth, as
two connections would.
"""

import heapq
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from bamboo.ids import NodeId
from bamboo.ports import YIELDING, Delivered


class Due(NamedTuple):
    """When a message arrives, in monotonic seconds of the host."""

    at_s: float = 0.0
    shared_s: float = 0.0
    """How long the other lane has held up the link's yielding lane since the link was made. The
    receiver learns from a later stamp how much later a held message of that lane is due."""


AT_ONCE = Due()


@dataclass(slots=True)
class _Lanes:
    """Until when each lane of one link is busy."""

    free_s: float = 0.0
    yielding_free_s: float = 0.0
    shared_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class VirtualLink:
    """`gbps` = 0 means a link without a bandwidth limit."""

    gbps: float
    latency_s: float
    _lanes: dict[NodeId, _Lanes] = field(default_factory=dict)

    def due(self, to: NodeId, size_bytes: int, now_s: float, *, yields: bool = False) -> Due:
        """When a message that is handed over at `now_s` arrives; the link is booked until it has
        left.

        A yielding message starts when all that was handed over before it has left. Any other
        message shares the link with what is left of those, so both take longer by the time that
        they share it.
        """
        lanes = self._lanes.setdefault(to, _Lanes())
        duration_s = size_bytes * 8 / (self.gbps * 1e9) if self.gbps else 0.0
        if yields:
            lanes.yielding_free_s = duration_s + max(now_s, lanes.free_s, lanes.yielding_free_s)
            return Due(lanes.yielding_free_s + self.latency_s, lanes.shared_s)
        begin_s = max(now_s, lanes.free_s)
        sharing_s = min(duration_s, max(0.0, lanes.yielding_free_s - begin_s))
        lanes.free_s = begin_s + duration_s + sharing_s
        lanes.yielding_free_s += sharing_s
        lanes.shared_s += sharing_s
        return Due(lanes.free_s + self.latency_s, lanes.shared_s)


class Held:
    """The messages that a virtual link still holds at their receiver, until they are due."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Delivered, float]] = []
        """When due, number, message, and the `shared_s` that the due time includes."""
        self._shared_s: dict[NodeId, float] = {}
        self._sequence = 0

    @property
    def next_due_s(self) -> float | None:
        """When the next one is due (monotonic), if there is one."""
        return self._heap[0][0] if self._heap else None

    def hold(self, message: Delivered, due: Due) -> None:
        """Keep a message that came over a virtual link until it is due."""
        sender = message.sender
        self._shared_s[sender] = max(self._shared_s.get(sender, 0.0), due.shared_s)
        self._sequence += 1
        heapq.heappush(self._heap, (due.at_s, self._sequence, message, due.shared_s))

    def take_due(self) -> list[Delivered]:
        """The messages that are due by now."""
        out = []
        while self._heap and self._heap[0][0] <= time.monotonic():
            due_s, sequence, message, shared_s = heapq.heappop(self._heap)
            late_s = self._shared_s[message.sender] - shared_s
            if message.key.kind in YIELDING and late_s > 0.0:
                later = (due_s + late_s, sequence, message, shared_s + late_s)
                heapq.heappush(self._heap, later)
            else:
                out.append(message)
        return out
