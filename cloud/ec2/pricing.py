"""Offers from prices: the spot market's present ones, and a catalogue's for on-demand. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bamboo.ids import ZoneId
from cloud.provider import Market, Offer, Pool


def spot_offers(
    history: Iterable[Mapping[str, Any]],
    *,
    zones: Sequence[str],
    speeds: Mapping[str, float] | None = None,
) -> tuple[Offer, ...]:
    """Offers from the records of DescribeSpotPriceHistory: per pool its newest price, in `zones`
    only, cheapest per speed first; of equal prices the zone listed first."""
    newest: dict[Pool, tuple[Any, float]] = {}
    for record in history:
        pool = Pool(
            instance_type=str(record["InstanceType"]),
            zone=ZoneId(str(record["AvailabilityZone"])),
            market=Market.SPOT,
        )
        known = newest.get(pool)
        if pool.zone in zones and (known is None or known[0] < record["Timestamp"]):
            newest[pool] = (record["Timestamp"], float(record["SpotPrice"]))
    offers = [
        Offer(pool=pool, usd_per_hour=usd, speed=(speeds or {}).get(pool.instance_type, 1.0))
        for pool, (_, usd) in newest.items()
    ]
    return cheapest_first(offers, zones)


def on_demand_offers(
    usd_per_hour: Mapping[str, float],
    *,
    instance_types: Sequence[str],
    zones: Sequence[str],
    speeds: Mapping[str, float] | None = None,
) -> tuple[Offer, ...]:
    """On-demand offers in every zone, at the catalogue's prices; a type that the catalogue does
    not know is not offered, because nobody could say what it costs."""
    offers = [
        Offer(
            pool=Pool(instance_type=kind, zone=ZoneId(zone), market=Market.ON_DEMAND),
            usd_per_hour=usd_per_hour[kind],
            speed=(speeds or {}).get(kind, 1.0),
        )
        for kind in instance_types
        if kind in usd_per_hour
        for zone in zones
    ]
    return cheapest_first(offers, zones)


def cheapest_first(offers: Sequence[Offer], zones: Sequence[str]) -> tuple[Offer, ...]:
    """By price per speed, then by the order of the zones, then by type."""
    order = {zone: index for index, zone in enumerate(zones)}
    return tuple(
        sorted(offers, key=lambda o: (o.usd_per_speed, order[o.pool.zone], o.pool.instance_type))
    )
