"""Prices of spot instances, by zone and over time.

Format: one `ms,zone,usd_per_hour` per line, in order of time, with an optional header of these
names. An empty zone means all zones without lines of their own. Rule: a price holds from its line
to the zone's next one, and the first one also holds before its line. An instance is charged the
price of each second that it runs.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bamboo.errors import InputError
from bamboo.ids import ZoneId
from bamboo.named_files import read_bounded
from bamboo.sim.market.trace import LONGEST_FILE, LONGEST_S
from bamboo.value import BadPrice, checked_usd

ANY = ZoneId("")
FORMAT = "ms,zone,usd_per_hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """`by_zone[zone]`: (seconds since the beginning, USD per hour from then on), in order."""

    source: str
    by_zone: Mapping[ZoneId, tuple[tuple[float, float], ...]]

    def mean_usd_per_hour(self, zone: ZoneId, from_s: float, until_s: float) -> float:
        """The mean price of an instance of `zone` that runs between these times.

        Raises InputError for a zone that has no price.
        """
        steps = self._of(zone)
        if len(steps) == 1 or until_s <= from_s:
            return steps[max(0, bisect_right(steps, (from_s, math.inf)) - 1)][1]
        ends = [*(at_s for at_s, _ in steps[1:]), math.inf]
        paid = sum(
            price * max(0.0, min(end_s, until_s) - max(begin_s, from_s))
            for (begin_s, price), end_s in zip(
                [(-math.inf, steps[0][1]), *steps[1:]], ends, strict=True
            )
        )
        return paid / (until_s - from_s)

    def scaled(self, factor: float) -> "Prices":
        """The prices in a time that runs `1 / factor` times as fast."""
        return Prices(
            source=self.source,
            by_zone={
                zone: tuple((at_s * factor, price) for at_s, price in steps)
                for zone, steps in self.by_zone.items()
            },
        )

    def _of(self, zone: ZoneId) -> tuple[tuple[float, float], ...]:
        found = self.by_zone.get(zone) or self.by_zone.get(ANY)
        if not found:
            known = ", ".join(self.by_zone)
            raise InputError(
                f"{self.source} has no price for zone {zone!r}, and none for all; it has {known}"
            )
        return found


def constant(usd_per_hour: float, *, source: str = "") -> Prices:
    """One price for all zones and all time."""
    return Prices(source=source, by_zone={ANY: ((0.0, usd_per_hour),)})


def read_prices(path: Path, *, on_demand_usd: float | None = None) -> Prices:
    """Read a series. `on_demand_usd`: upper limit of a spot price per hour; None: unknown. Raises
    InputError with file, line and reason."""
    try:
        text = read_bounded(path, encoding="utf-8-sig", most=LONGEST_FILE)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read as prices: {error.strerror}; name a file that is there"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no text; write `ms,zone,usd_per_hour` lines") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}; write `ms,zone,usd_per_hour` lines") from error
    by_zone: dict[ZoneId, list[tuple[float, float]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not (number == 1 and line.replace(" ", "").lower() == FORMAT):
            zone, at_s, price = _line(path, number, line, on_demand_usd=on_demand_usd)
            by_zone.setdefault(zone, []).append((at_s, price))
    if not by_zone:
        raise InputError(f"{path}: is empty; give prices with at least one line")
    for zone, steps in by_zone.items():
        _check_order(path, zone, steps)
    return Prices(source=str(path), by_zone={z: tuple(steps) for z, steps in by_zone.items()})


def _line(
    path: Path, number: int, line: str, *, on_demand_usd: float | None
) -> tuple[ZoneId, float, float]:
    parts = [part.strip() for part in line.split(",")]
    where = f"{path}: line {number}: {line.strip()[:80]!r}"
    if len(parts) != 3:
        raise InputError(f"{where}: write `ms,zone,usd_per_hour`")
    try:
        at_s = int(parts[0]) / 1e3
    except (ValueError, OverflowError) as error:
        raise InputError(f"{where}: the time is no whole milliseconds") from error
    if not 0 <= at_s <= LONGEST_S:
        raise InputError(f"{where}: the time is none since the begin of the market")
    try:
        price = checked_usd(parts[2], written=True, on_demand_usd=on_demand_usd)
    except BadPrice as error:
        raise InputError(
            f"{where}: {error}; correct it, or take the instance type that the series is of"
        ) from error
    return ZoneId(parts[1]), at_s, price


def _check_order(path: Path, zone: ZoneId, steps: Sequence[tuple[float, float]]) -> None:
    for (before_s, _), (after_s, _) in pairwise(steps):
        if after_s < before_s:
            raise InputError(
                f"{path}: zone {zone!r} goes back in time, from {before_s:g} s to {after_s:g} s; "
                "put its lines in order"
            )
