"""What the market has and nobody rents, and which of it a run takes next.

Rule: as `cloud.reconcile` asks a cloud. A zone that is to have more nodes than it has comes first,
of several the one that lacks most; for the rest the cheapest zone that has any takes all, so that
nodes of a run in one zone pay nothing for the bytes between them. Of a zone the oldest comes first.
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
    """Of an instance of a zone, at an instant of the world."""
    zones: Mapping[ZoneId, int] = field(default_factory=dict)
    """How many nodes each zone is to have, as far as it can; empty: it does not matter."""


class FreeNodes:
    """Of one market, by the trace's names."""

    def __init__(self, renting: Renting) -> None:
        self._renting = renting
        self._zone_of: dict[str, ZoneId] = {}
        self._by_zone: dict[ZoneId, dict[str, None]] = {}
        """Names in the order in which they came; no zone without any."""

    def __len__(self) -> int:
        return len(self._zone_of)

    def add(self, name: str, zone: ZoneId) -> None:
        """It may be rented from now on."""
        self._zone_of[name] = zone
        self._by_zone.setdefault(zone, {})[name] = None

    def drop(self, name: str) -> None:
        """The market has it no more, if it was here."""
        zone = self._zone_of.pop(name, None)
        if zone is not None:
            of_zone = self._by_zone[zone]
            del of_zone[name]
            if not of_zone:
                del self._by_zone[zone]

    def take(self, rented: Mapping[ZoneId, int], now_s: float) -> tuple[str, ZoneId]:
        """The next one that is rented, and its zone; `rented`: nodes of each zone by now. Asked
        only while there is one."""
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
