"""`bamboo prices` as JSON and as text: quotas first, then a line for each pool, then sources."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from bamboo.planner.origin import Origin, age_text
from bamboo.planner.prices.catalogue import NO_DISCOUNT_SHARE, Catalogue, InstanceType
from bamboo.planner.prices.price_warnings import price_warnings
from bamboo.planner.prices.quota import FAMILIES, NEW_ACCOUNT_VCPUS, family_of
from bamboo.quantities import usd
from cli.echo import columns, paragraph

RULE = (
    f"a spot pool at or above {NO_DISCOUNT_SHARE:.0%} of the on-demand price is marked `no "
    "discount`: it can be interrupted and saves next to nothing"
)


def prices_body(
    catalogue: Catalogue, *, region: str, today: date, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Everything that is known of a region's prices, each with date, source and age in days."""
    return {
        "region": region,
        "prices_of": catalogue.region,
        "file": catalogue.file,
        "taken": catalogue.taken,
        "today": today.isoformat(),
        "no_discount_share": NO_DISCOUNT_SHARE,
        "quotas": [_quota(catalogue, code, name, today) for code, name in _spot_quotas(catalogue)],
        "types": [_type(catalogue, kind, today) for kind in catalogue.types.values()],
        "auxiliary": [
            {
                "name": name,
                "what": price.what,
                "usd": price.usd,
                "unit": price.unit,
                **_origin(price.origin, today),
            }
            for name, price in catalogue.auxiliary.items()
        ],
        "warnings": list(price_warnings(catalogue, catalogue.types)),
        "notes": list(notes),
    }


def prices_text(body: Mapping[str, Any]) -> str:
    """The same for a person. Each source is listed once, with a number that its prices refer to."""
    sources: dict[tuple[str, str, int], int] = {}

    def cite(price: Mapping[str, Any]) -> str:
        number = sources.setdefault(
            (price["seen"], price["source"], price["age_days"]), len(sources) + 1
        )
        return f"[{number}]"

    where = body["region"]
    if body["prices_of"] != where:
        where += f": no prices of its own yet, those of {body['prices_of']} stand for them"
    lines = [f"{where} (by {body['file']})"]
    for quota in body["quotas"]:
        lines += paragraph(_quota_line(quota))
    head = ("type", "GPUs", "vCPU", "Gbps", "on-demand", "", "spot zone", "$/h", "of it", "", "")
    rows: list[tuple[str, ...]] = [head]
    for kind in body["types"]:
        rows += _rows(kind, cite)
    lines += ["", *columns(rows, right=frozenset({2, 3, 4, 7, 8}))]
    beside = [("beside the instances", "", "per", "")]
    beside += [(a["what"], f"${a['usd']:g}", a["unit"], cite(a)) for a in body["auxiliary"]]
    lines += ["", *columns(beside, right=frozenset({1}))]
    lines += ["", *(paragraph(RULE))]
    for (seen, source, days), number in sources.items():
        lines += paragraph(f"[{number}] {seen} ({age_text(days)}): {source}")
    for warning in body["warnings"]:
        lines += paragraph(f"warning: {warning}")
    for note in body["notes"]:
        lines += paragraph(f"note: {note}")
    return "\n".join(lines)


def _spot_quotas(catalogue: Catalogue) -> list[tuple[str, str]]:
    """The quotas of the families that the catalogue has types of."""
    used = [family_of(name) for name in catalogue.types]
    return [(f.spot.code, f.spot.name) for f in FAMILIES if f in used]


def _quota(catalogue: Catalogue, code: str, name: str, today: date) -> dict[str, Any]:
    known = catalogue.quotas.get(code)
    return {
        "code": code,
        "name": name,
        "vcpus": None if known is None else known.vcpus,
        "of_a_new_account": NEW_ACCOUNT_VCPUS,
        "origin": None if known is None else _origin(known.origin, today),
    }


def _quota_line(quota: Mapping[str, Any]) -> str:
    words = f"quota {quota['name']} ({quota['code']}): "
    if quota["vcpus"] is None:
        return f"{words}{quota['of_a_new_account']} vCPUs in a new account; yours was not asked"
    age = age_text(quota["origin"]["age_days"])
    return f"{words}{quota['vcpus']:,.0f} vCPUs in this account ({age})"


def _type(catalogue: Catalogue, kind: InstanceType, today: date) -> dict[str, Any]:
    on_demand, spot = catalogue.on_demand_origin(kind), kind.spot_from
    quoted = [
        {"zone": zone, "zone_id": catalogue.zone_ids.get(zone), **_priced(kind, price)}
        for zone, price in sorted(kind.spot_by_zone.items(), key=lambda one: (one[1], one[0]))
    ]
    low_high = kind.spot_usd_per_hour
    family = family_of(kind.name)
    return {
        "type": kind.name,
        "gpu": kind.gpu,
        "gpus": kind.gpus,
        "gpu_memory_gib": kind.gpu_memory_gib,
        "vcpus": kind.vcpus,
        "host_memory_gib": kind.host_memory_gib,
        "network_gbps": kind.network_gbps,
        "offered": kind.offered,
        "spot_quota": None if family is None else family.spot.code,
        "on_demand": {
            "usd_per_hour": kind.on_demand_usd_per_hour,
            **_origin(on_demand, today),
        },
        "spot": None
        if spot is None
        else {
            "range": None if low_high is None else [_priced(kind, price) for price in low_high],
            "zones": quoted,
            **_origin(spot, today),
        },
    }


def _priced(kind: InstanceType, spot_usd_per_hour: float) -> dict[str, Any]:
    return {
        "usd_per_hour": spot_usd_per_hour,
        "of_on_demand": kind.share_of_on_demand(spot_usd_per_hour),
        "no_discount": kind.lacks_discount(spot_usd_per_hour),
        "above_on_demand": spot_usd_per_hour > kind.on_demand_usd_per_hour,
    }


def _origin(origin: Origin, today: date) -> dict[str, Any]:
    return {
        "seen": origin.seen,
        "source": origin.source,
        "age_days": origin.age_days(today),
    }


def _rows(kind: Mapping[str, Any], cite: Any) -> list[tuple[str, ...]]:
    on_demand, spot = kind["on_demand"], kind["spot"]
    what = (
        kind["type"],
        f"{kind['gpus']} x {kind['gpu']} {kind['gpu_memory_gib']:.3g} GiB",
        "" if kind["vcpus"] is None else str(kind["vcpus"]),
        f"{kind['network_gbps']:g}",
        usd(on_demand["usd_per_hour"]),
        cite(on_demand),
    )
    pools = _pools(kind, spot, "" if spot is None else cite(spot))
    return [what + pools[0], *(("",) * len(what) + pool for pool in pools[1:])]


def _pools(kind: Mapping[str, Any], spot: Any, cited: str) -> list[tuple[str, ...]]:
    """Zone, price, share of on-demand, mark, source: a line for each pool, or for the range."""
    if not kind["offered"]:
        return [("not in the region", "", "", "", cited)]
    if spot is None:
        return [("not looked at", "", "", "", "")]
    if spot["zones"]:
        return [
            (f"{p['zone_id'] or '?'} {p['zone']}", usd(p["usd_per_hour"]), *_share([p]), cited)
            for p in spot["zones"]
        ]
    if spot["range"] is None:
        return [("no pool", "", "", "", cited)]
    span = "-".join(usd(end["usd_per_hour"]) for end in spot["range"])
    return [("by zone, from-to", span, *_share(spot["range"]), cited)]


def _share(ends: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    shares = [f"{end['of_on_demand'] * 100:.0f}" for end in ends]
    mark = "no discount" if all(end["no_discount"] for end in ends) else ""
    if all(end["above_on_demand"] for end in ends):
        mark = "above on demand"
    return "-".join(dict.fromkeys(shares)) + "%", mark
