"""The virtual link: a message arrives when a link of the given speed would have delivered it.

The sender stamps each message with its due time on the host's monotonic clock; the receiver holds
it until then. One link per ordered pair of nodes. It has two lanes, in each of which the bytes go
one after the other; while both have some, each has half of the link, as two connections would.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from bamboo.ids import NodeId


class Due(NamedTuple):
    """When a message has arrived, in monotonic seconds of the host."""

    at_s: float = 0.0
    shared_s: float = 0.0
    """How long the link's yielding lane has been held up by the other one since the link was
    made: a later stamp tells who holds a message of that lane how much later it is due."""


AT_ONCE = Due()


@dataclass(slots=True)
class _Lanes:
    """Until when each lane of one link is taken."""

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
        """When a message that is handed over at `now_s` is there; books the link until it left.

        A yielding one begins when all that was handed over before has left. Another one shares the
        link with what is left of them, so both take longer by the time for which they share it.
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
