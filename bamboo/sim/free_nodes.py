"""The nodes of the market that are not rented, and the order in which a run takes them.

Rule: the order is that in which `cloud.reconcile` asks a cloud. A zone with fewer nodes than it
should have comes first, and among several the one that lacks most. Otherwise the cheapest zone with
free nodes is used for all, so that nodes in one zone pay nothing for the bytes between them. Within
a zone the oldest node comes first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bamboo.ids import ZoneId


def _nothing(_zone: ZoneId, _at_s: float) -> float:
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Renting:
    """What a run looks for in the market."""

    usd_per_hour: Callable[[ZoneId, float], float] = _nothing
    """Price of an instance of a zone, at a time of the world."""
    zones: Mapping[ZoneId, int] = field(default_factory=dict)
    """Preferred number of nodes in each zone; empty: zones do not matter."""


class FreeNodes:
    """The free nodes of one market, by the trace's names."""

    def __init__(self, renting: Renting) -> None:
        self._renting = renting
        self._zone_of: dict[str, ZoneId] = {}
        self._by_zone: dict[ZoneId, dict[str, None]] = {}
        """Names in the order in which they came; zones without free nodes are absent."""

    def __len__(self) -> int:
        return len(self._zone_of)

    def add(self, name: str, zone: ZoneId) -> None:
        """The node can be rented from now on."""
        self._zone_of[name] = zone
        self._by_zone.setdefault(zone, {})[name] = None

    def drop(self, name: str) -> None:
        """The market no longer has the node; no effect if it is not here."""
        zone = self._zone_of.pop(name, None)
        if zone is not None:
            of_zone = self._by_zone[zone]
            del of_zone[name]
            if not of_zone:
                del self._by_zone[zone]

    def take(self, rented: Mapping[ZoneId, int], now_s: float) -> tuple[str, ZoneId]:
        """The next node to rent, and its zone; `rented`: present nodes of each zone. It is only
        called while there is a free node."""
        wanted, usd_per_hour = self._renting.zones, self._renting.usd_per_hour
        zone = min(
            self._by_zone,
            key=lambda z: (
                -max(0, wanted.get(z, 0) - rented.get(z, 0)),
                usd_per_hour(z, now_s),
                z,
            ),
        )
        name = next(iter(self._by_zone[zone]))
        self.drop(name)
        return name, zone
