"""Merges a catalogue with a cloud's answer or with another catalogue, and writes it as text.

Rule: pure. Prices are compared one by one, by the time at which each was seen, so no older figure
replaces a newer one, whichever file it is in. What was not asked keeps its value and its date.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bamboo.planner.origin import Origin, last_moment
from bamboo.planner.prices.catalogue import SCHEMA_VERSION, Catalogue, InstanceType, KnownQuota
from bamboo.ports import PricesSeen, TypeFacts
from bamboo.value import BadPrice, checked_usd

EARLIEST = "0001-01-01"


def refreshed(catalogue: Catalogue, seen: PricesSeen, *, at: str, source: str) -> Catalogue:
    """The catalogue after a cloud has answered for its types in one region. `at`: ISO 8601.

    Spot prices, facts, zone IDs and quotas are taken from the answer; on-demand prices stay, with
    their dates. A type without a pool has no spot price from then on; one that the region lacks is
    marked. Pools in `no_prices` are left out.
    """
    bad = no_prices(seen)
    origin = Origin(seen=at, source=source)
    return replace(
        catalogue,
        region=seen.region,
        taken=at,
        spot_seen=at,
        zone_ids=dict(seen.zone_ids),
        quotas={code: KnownQuota(vcpus=vcpus, origin=origin) for code, vcpus in seen.quotas.items()}
        or catalogue.quotas,
        types={
            name: _asked(
                kind,
                seen.facts.get(name),
                {z: usd for z, usd in seen.spot.get(name, {}).items() if (name, z) not in bad},
                origin,
            )
            for name, kind in catalogue.types.items()
        },
    )


def no_prices(seen: PricesSeen) -> dict[tuple[str, str], str]:
    """(Type, zone) -> one sentence why the cloud's figure for that pool is not a valid price."""
    found = {}
    for name, zones in seen.spot.items():
        for zone, usd in zones.items():
            try:
                checked_usd(usd)
            except BadPrice as error:
                found[name, zone] = f"{name} on spot in {zone} is left out: {error}"
    return found


def _asked(
    kind: InstanceType, facts: TypeFacts | None, spot: Mapping[str, float], origin: Origin
) -> InstanceType:
    if facts is not None:
        kind = replace(
            kind,
            vcpus=facts.vcpus,
            gpu_memory_gib=facts.gpu_memory_mib / 1024,
            network_gbps=facts.network_gbps or kind.network_gbps,
        )
    return replace(
        kind,
        spot_by_zone=dict(sorted(spot.items())),
        spot_usd_per_hour=(min(spot.values()), max(spot.values())) if spot else None,
        spot_from=origin,
        offered=facts is not None,
    )


def newest(first: Catalogue, second: Catalogue) -> Catalogue:
    """Takes of each price the one seen later, and `first` if both were seen at the same time;
    `second` names region and file. Facts, zone IDs and quotas are those of the catalogue that was
    put together later. Zones belong to a region: if the regions differ, spot prices are those of
    `second`."""
    older, newer = sorted((first, second), key=_taken)
    types = {}
    for name in (*newer.types, *(n for n in older.types if n not in newer.types)):
        both = [c.types[name] for c in (first, second) if name in c.types]
        facts = newer.types.get(name) or older.types[name]
        host = next((k.host_memory_gib for k in reversed(both) if k.host_memory_gib), None)
        zoned = both if first.region == second.region else both[-1:]
        on_demand = max(both, key=lambda k: _seen(k.on_demand_from))
        spot = max(zoned, key=lambda k: _seen(k.spot_from))
        types[name] = replace(
            facts,
            host_memory_gib=facts.host_memory_gib or host,  # a cloud may not have been asked for it
            **{field: getattr(on_demand, field) for field in _ON_DEMAND},
            **{field: getattr(spot, field) for field in _SPOT},
        )
    auxiliary = dict(first.auxiliary)
    for name, price in second.auxiliary.items():
        known = auxiliary.get(name)
        if known is None or known.origin.until < price.origin.until:
            auxiliary[name] = price
    return replace(
        second,
        on_demand_seen=max(
            (first, second), key=lambda c: last_moment(c.on_demand_seen)
        ).on_demand_seen,
        spot_seen=max((first, second), key=lambda c: last_moment(c.spot_seen)).spot_seen,
        types=types,
        taken=newer.taken,
        zone_ids=newer.zone_ids or older.zone_ids,
        quotas=newer.quotas or older.quotas,
        auxiliary=auxiliary,
    )


_SPOT = ("spot_usd_per_hour", "spot_by_zone", "spot_from", "offered")
_ON_DEMAND = ("on_demand_usd_per_hour", "on_demand_from")


def _taken(catalogue: Catalogue) -> Any:
    return last_moment(catalogue.taken or EARLIEST)


def _seen(origin: Origin | None) -> Any:
    return last_moment(EARLIEST) if origin is None else origin.until


def catalogue_json(catalogue: Catalogue) -> str:
    """Text that `catalogue_from` reads; the same catalogue gives the same text."""
    body = {
        "schema_version": SCHEMA_VERSION,
        "region": catalogue.region,
        "asked": catalogue.asked,
        "on_demand_region": catalogue.on_demand_region,
        "taken": catalogue.taken,
        "on_demand_seen": catalogue.on_demand_seen,
        "spot_seen": catalogue.spot_seen,
        "zone_ids": dict(catalogue.zone_ids),
        "types": {name: _type_body(kind) for name, kind in catalogue.types.items()},
        "auxiliary": {
            name: {"usd": p.usd, "unit": p.unit, "what": p.what, **_origin_body(p.origin)}
            for name, p in catalogue.auxiliary.items()
        },
        "quotas": {
            code: {"vcpus": quota.vcpus, **_origin_body(quota.origin)}
            for code, quota in catalogue.quotas.items()
        },
    }
    return json.dumps(body, indent=1) + "\n"


def _type_body(kind: InstanceType) -> dict[str, Any]:
    spot = kind.spot_usd_per_hour
    return {
        "gpu": kind.gpu,
        "gpus": kind.gpus,
        "gpu_memory_gib": kind.gpu_memory_gib,
        "network_gbps": kind.network_gbps,
        "vcpus": kind.vcpus,
        "host_memory_gib": kind.host_memory_gib,
        "offered": kind.offered,
        "on_demand_usd_per_hour": kind.on_demand_usd_per_hour,
        **_origin_body(kind.on_demand_from, "on_demand_"),
        "spot_usd_per_hour": None if spot is None else list(spot),
        "spot_by_zone": dict(kind.spot_by_zone),
        **_origin_body(kind.spot_from, "spot_"),
    }


def _origin_body(origin: Origin | None, prefix: str = "") -> dict[str, str]:
    if origin is None:
        return {}
    return {f"{prefix}seen": origin.seen, f"{prefix}source": origin.source}
