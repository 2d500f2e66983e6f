"""What a run costs: instance-seconds times prices, by the rules of EC2 for Linux instances.

Pure. The rules: billing per second with a 60 s minimum per instance; a spot instance that *AWS*
interrupts within its first hour is free, one that we terminate is paid. On a local run the
instances are processes and the prices are a catalogue's, so every figure is called modelled.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MINIMUM_S = 60.0
FREE_WHEN_INTERRUPTED_BEFORE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """One instance, from its start to its end or until now."""

    instance: str
    instance_type: str
    zone: str
    market: str
    """`spot` or `on-demand`."""
    started_at_s: float
    ended_at_s: float | None = None
    interrupted: bool = False
    """The cloud took it; False: we terminated it, or it runs."""
    usd_per_hour: float
    """Of the market it was rented on."""
    on_demand_usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One instance on the receipt."""

    instance: str
    instance_type: str
    zone: str
    market: str
    seconds: float
    """Time that it existed."""
    billed_s: float
    """After the minimum, or 0 when it was free."""
    usd_per_hour: float
    usd: float
    on_demand_usd: float
    """The same seconds bought on-demand, where nothing is ever free."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """All instances of a run."""

    lines: tuple[Line, ...]
    modelled: bool
    """The instances were processes of this machine: no dollar was paid."""

    @property
    def instance_seconds(self) -> float:
        return sum(line.seconds for line in self.lines)

    @property
    def usd(self) -> float:
        return sum(line.usd for line in self.lines)

    @property
    def on_demand_usd(self) -> float:
        return sum(line.on_demand_usd for line in self.lines)

    def to_body(self) -> dict[str, Any]:
        """As it stands in receipt.json."""
        return {
            "modelled": self.modelled,
            "instance_seconds": round(self.instance_seconds, 3),
            "usd": round(self.usd, 9),
            "on_demand_usd": round(self.on_demand_usd, 9),
            "instances": [asdict(line) for line in self.lines],
        }


def bill(rented: Sequence[Rented], *, now_s: float, modelled: bool) -> Bill:
    """What it came to by `now_s`. A run that is still going would be billed so, ended now."""
    return Bill(lines=tuple(_line(item, now_s=now_s) for item in rented), modelled=modelled)


def spent_usd(rented: Sequence[Rented], *, now_s: float) -> float:
    """Dollars so far, as a meter shows them: seconds used so far, without the 60 s minimum.

    The minimum is what ending now would add; the receipt has it.
    """
    return sum(
        0.0 if _free(item) else _seconds(item, now_s) * item.usd_per_hour / 3600 for item in rented
    )


def _seconds(item: Rented, now_s: float) -> float:
    end_s = now_s if item.ended_at_s is None else item.ended_at_s
    return max(0.0, end_s - item.started_at_s)


def _free(item: Rented) -> bool:
    return (
        item.market == "spot"
        and item.interrupted
        and item.ended_at_s is not None
        and item.ended_at_s - item.started_at_s < FREE_WHEN_INTERRUPTED_BEFORE_S
    )


def _line(item: Rented, *, now_s: float) -> Line:
    seconds = _seconds(item, now_s)
    minimum = max(MINIMUM_S, seconds)
    free = _free(item)
    billed_s = 0.0 if free else minimum
    if free:
        note = "interrupted by the cloud in its first hour: free"
    elif seconds < MINIMUM_S:
        note = "60 s minimum"
    else:
        note = ""
    return Line(
        instance=item.instance,
        instance_type=item.instance_type,
        zone=item.zone,
        market=item.market,
        seconds=round(seconds, 3),
        billed_s=round(billed_s, 3),
        usd_per_hour=item.usd_per_hour,
        usd=billed_s * item.usd_per_hour / 3600,
        on_demand_usd=minimum * item.on_demand_usd_per_hour / 3600,
        note=note,
    )
