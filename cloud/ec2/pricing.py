"""Offers from prices: the spot market's present ones, and a catalogue's for on-demand. Pure.

Rule: a pool whose price `bamboo.value` rejects is not an offer, and the reason is given.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from bamboo.ids import ZoneId
from bamboo.value import BadPrice, checked_usd
from cloud.provider import Market, Offer, Pool, cheapest_first


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Pools with a price, the cheapest per speed first, and pools without a usable one."""

    offers: tuple[Offer, ...]
    left_out: tuple[str, ...]
    """A sentence each."""


def spot_offers(
    history: Iterable[Mapping[str, Any]],
    *,
    zones: Sequence[str],
    speeds: Mapping[str, float] | None = None,
    ceilings: Mapping[str, float] | None = None,
    today: date | None = None,
) -> Priced:
    """Offers from the records of DescribeSpotPriceHistory: the newest price of each pool, in
    `zones` only. At equal prices the zone that is listed first comes first. `ceilings`: type -> the
    on-demand price in this region, for types whose spot price is checked against it. No price is
    later than `today`."""
    newest: dict[Pool, Mapping[str, Any]] = {}
    for record in history:
        pool = Pool(
            instance_type=str(record["InstanceType"]),
            zone=ZoneId(str(record["AvailabilityZone"])),
            market=Market.SPOT,
        )
        known = newest.get(pool)
        if pool.zone in zones and (known is None or known["Timestamp"] < record["Timestamp"]):
            newest[pool] = record
    offers, left_out = [], []
    for pool, record in newest.items():
        kind = pool.instance_type
        try:
            usd = checked_usd(
                record["SpotPrice"],
                written=True,
                on_demand_usd=(ceilings or {}).get(kind),
                seen=record["Timestamp"],
                today=today,
            )
        except BadPrice as error:
            left_out.append(f"{kind} on spot in {pool.zone} is left out: {error}")
            continue
        offers.append(Offer(pool=pool, usd_per_hour=usd, speed=(speeds or {}).get(kind, 1.0)))
    return Priced(offers=cheapest_first(offers, zones), left_out=tuple(left_out))


def on_demand_offers(
    usd_per_hour: Mapping[str, float],
    *,
    instance_types: Sequence[str],
    zones: Sequence[str],
    speeds: Mapping[str, float] | None = None,
) -> Priced:
    """On-demand offers in every zone, at the catalogue's prices. A type that the catalogue does not
    know is not offered, because its cost would be unknown."""
    offers, left_out = [], []
    for kind in instance_types:
        if kind not in usd_per_hour:
            continue
        try:
            usd = checked_usd(usd_per_hour[kind])
        except BadPrice as error:
            left_out.append(f"{kind} on demand is left out: {error}")
            continue
        offers += [
            Offer(
                pool=Pool(instance_type=kind, zone=ZoneId(zone), market=Market.ON_DEMAND),
                usd_per_hour=usd,
                speed=(speeds or {}).get(kind, 1.0),
            )
            for zone in zones
        ]
    return Priced(offers=cheapest_first(offers, zones), left_out=tuple(left_out))
