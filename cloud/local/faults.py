"""The refusals and prices that a test sets for the mock. Safe from several threads."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFault:
    """Refuse the next `count` launches into a pool with `code`; an empty field matches any.

    `grant` > 0: the launch is not refused, but gets only so many instances. `of_fleet`: it applies
    to a request for a fleet as a whole, and to no pool. `lost`: the launch is carried out, and the
    connection is closed before the answer.
    """

    code: str = "InsufficientInstanceCapacity"
    zone: str = ""
    instance_type: str = ""
    count: int = 1
    grant: int = 0
    of_fleet: bool = False
    lost: bool = False

    def matches(self, *, zone: str, instance_type: str) -> bool:
        return (
            self.count > 0 and self.zone in ("", zone) and self.instance_type in ("", instance_type)
        )


class Market:
    """Faults still to come, and spot prices in USD/h by type and zone."""

    def __init__(self, prices: Mapping[str, Mapping[str, float]]) -> None:
        self._lock = threading.Lock()
        self._prices = {kind: dict(zones) for kind, zones in prices.items()}
        self._faults: list[CapacityFault] = []

    def inject(self, fault: CapacityFault) -> None:
        """Append a fault to those that still wait."""
        with self._lock:
            self._faults.append(fault)

    def relent(self) -> None:
        """Forget the faults that have not applied yet."""
        with self._lock:
            self._faults.clear()

    def refusal(
        self, *, zone: str, instance_type: str, of_fleet: bool = False
    ) -> CapacityFault | None:
        """The fault that applies to this launch, counted down; None: there is none."""
        return self._met(
            lambda fault: (
                not fault.lost
                and fault.of_fleet == of_fleet
                and fault.matches(zone=zone, instance_type=instance_type)
            )
        )

    def loses_answer(self) -> bool:
        """Whether the answer to this launch is lost."""
        return self._met(lambda fault: fault.lost and fault.count > 0) is not None

    def _met(self, meets: Callable[[CapacityFault], bool]) -> CapacityFault | None:
        with self._lock:
            for index, fault in enumerate(self._faults):
                if meets(fault):
                    self._faults[index] = replace(fault, count=fault.count - 1)
                    return fault
        return None

    def spot_usd_per_hour(self, *, zone: str, instance_type: str) -> float | None:
        """The present spot price of a pool, or None when there is no such pool."""
        with self._lock:
            return self._prices.get(instance_type, {}).get(zone)

    def pools(self) -> tuple[tuple[str, str, float], ...]:
        """All pools as (type, zone, USD/h), sorted."""
        with self._lock:
            return tuple(
                sorted((t, z, usd) for t, zones in self._prices.items() for z, usd in zones.items())
            )
