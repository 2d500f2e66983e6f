"""The virtual link: a message arrives when a link of the given speed would have delivered it.

The sender stamps each message with its due time on the host's monotonic clock; the receiver holds
it until then. One link per ordered pair of nodes; its bytes go one after the other.
"""

from dataclasses import dataclass, field

from bamboo.ids import NodeId


@dataclass(slots=True, kw_only=True)
class VirtualLink:
    """`gbps` = 0 means a link without a bandwidth limit."""

    gbps: float
    latency_s: float
    _free_at_s: dict[NodeId, float] = field(default_factory=dict)

    def due_s(self, to: NodeId, size_bytes: int, now_s: float) -> float:
        """When a message that is handed over at `now_s` is there; books the link until it left."""
        duration_s = size_bytes * 8 / (self.gbps * 1e9) if self.gbps else 0.0
        free_s = max(now_s, self._free_at_s.get(to, 0.0)) + duration_s
        self._free_at_s[to] = free_s
        return free_s + self.latency_s
