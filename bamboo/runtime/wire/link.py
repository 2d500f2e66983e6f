"""The virtual link: a message arrives when a link of the given speed would have delivered it.

The sender stamps each message with its due time on the host's monotonic clock; the receiver holds
it until then. There is one link for each ordered pair of nodes. It has two lanes, and in each lane
the bytes go one after the other; while both have some, each gets half of the link's bandwidth, as
two connections would.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from bamboo.ids import NodeId


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
