"""Warnings about the prices of a plan, in addition to their sources.

Rule: pure; plan, price list, simulation and offers use this one function, so they say the same. Bad
prices were refused where they were read. The warnings are about pools that are left out, and about
prices that are used although they are old or cannot be compared with an on-demand price of their
own region.
"""

from collections.abc import Iterable, Sequence
from datetime import date

from bamboo.planner.origin import Origin, age_text
from bamboo.planner.prices.catalogue import Catalogue, InstanceType
from bamboo.value import LIST_DAYS, QUOTE_DAYS, BadPrice, check_seen

NAMED = 3


def price_warnings(
    catalogue: Catalogue,
    names: Iterable[str],
    zones: Iterable[str] | None = None,
    *,
    spot: bool = True,
) -> tuple[str, ...]:
    """One sentence for each pool of these types and zones (None: all zones seen) that is left out,
    and one for all types whose prices are old. Without `spot`, on-demand prices alone count.
    Without a day in the catalogue no price counts as old."""
    kinds = [catalogue.types[name] for name in dict.fromkeys(names) if name in catalogue.types]
    zones = None if zones is None else tuple(zones)
    said = list(catalogue.left_out([kind.name for kind in kinds], zones)) if spot else []
    if spot and not catalogue.ceilings():
        said += _above_elsewhere(catalogue, kinds, zones)
    if catalogue.today is None:
        return tuple(said)
    priced = [kind for kind in kinds if spot and kind.spot_usd_per_hour and kind.spot_from]
    again = f"ask EC2 with `bamboo prices --refresh --region {catalogue.asked or catalogue.region}`"
    newer = "take a newer release"
    for what, days, remedy, found in (
        ("spot", QUOTE_DAYS, again, [(k, k.spot_from) for k in priced if k.spot_by_zone]),
        ("spot", LIST_DAYS, again, [(k, k.spot_from) for k in priced if not k.spot_by_zone]),
        ("on-demand", LIST_DAYS, newer, [(k, catalogue.on_demand_origin(k)) for k in kinds]),
    ):
        dated = [(kind, origin) for kind, origin in found if origin is not None]
        said += _old(what, dated, days=days, today=catalogue.today, remedy=remedy)
        said += _to_come(what, dated, today=catalogue.today)
    return tuple(said)


def _above_elsewhere(
    catalogue: Catalogue, kinds: Sequence[InstanceType], zones: Sequence[str] | None
) -> Iterable[str]:
    where = catalogue.on_demand_region or catalogue.region
    for kind in kinds:
        for zone, usd in kind.spot_by_zone.items():
            if usd > kind.on_demand_usd_per_hour and (zones is None or zone in zones):
                yield (
                    f"{kind.name} on spot in {zone} is taken at {usd:g} USD, above the on-demand "
                    f"price of {kind.on_demand_usd_per_hour:g} USD, which is that of {where}"
                )


def _old(
    what: str,
    dated: Sequence[tuple[InstanceType, Origin]],
    *,
    days: int,
    today: date,
    remedy: str,
) -> list[str]:
    old = [(kind, origin.age_days(today)) for kind, origin in dated]
    old = [(kind, age) for kind, age in old if age > days]
    if not old:
        return []
    oldest = age_text(max(age for _, age in old))
    named = _named([kind for kind, _ in old])
    return [f"{what} prices of {named} are up to {oldest}, over {days}: {remedy}"]


def _to_come(
    what: str, dated: Sequence[tuple[InstanceType, Origin]], *, today: date
) -> Iterable[str]:
    for kind, origin in dated:
        try:
            check_seen(origin.until, today=today)
        except BadPrice as error:
            return [f"{what} prices of {kind.name}: {error}; set the clock"]
    return []


def _named(kinds: Sequence[InstanceType]) -> str:
    names = ", ".join(kind.name for kind in kinds[:NAMED])
    return names if len(kinds) <= NAMED else f"{names} and {len(kinds) - NAMED} more types"
