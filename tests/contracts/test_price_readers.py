"""One check of prices for whoever reads them: the same bad prices, given to every reader.

A reader refuses the document, or leaves the pool out and says so; either way in the words of
`bamboo.value`, and nothing of it is used. The last tests see to it that there is no other
reader.
"""

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bamboo.billing.money import bill, rented_from_journal
from bamboo.config.catalogue import installed_catalogue, read_catalogue
from bamboo.coord.codec import PriceRecord, record_body, record_of
from bamboo.errors import InputError, UnreadableRecord
from bamboo.ids import InstanceId, ZoneId
from bamboo.planner.prices.catalogue import catalogue_from, parse_catalogue
from bamboo.planner.prices.price_warnings import price_warnings
from bamboo.planner.prices.refreshed import catalogue_json, no_prices, refreshed
from bamboo.ports import PricesSeen
from bamboo.sim.market.prices import read_prices
from bamboo.value import MOST_USD, BadPrice, check_seen, checked_usd
from cloud.ec2.pricing import on_demand_offers, spot_offers

ROOT = Path(__file__).parents[2]
KIND, ZONE, ON_DEMAND = "g4dn.xlarge", "us-east-1a", 0.526
ABOVE = 0.9
NOW = datetime(2026, 11, 26, tzinfo=UTC)
BAD: Mapping[str, Any] = {
    "nan": float("nan"),
    "infinite": float("inf"),
    "below": float("-inf"),
    "nothing": 0.0,
    "negative": -0.2,
    "too much": MOST_USD * 1.01,
    "text": "cheap",
    "yes": True,
}


def said_of(value: Any, *, on_demand_usd: float | None = None) -> str:
    with pytest.raises(BadPrice) as caught:
        checked_usd(value, written=True, on_demand_usd=on_demand_usd)
    return str(caught.value)


def body_with(value: Any, *keys: str) -> str:
    """The text of a catalogue with one other value."""
    seen = PricesSeen(
        region="us-east-1", zone_ids={}, facts={}, spot={KIND: {ZONE: 0.2}}, quotas={}
    )
    catalogue = refreshed(installed_catalogue(), seen, at="2026-07-20", source="asked")
    body = json.loads(catalogue_json(catalogue))
    place = body
    for key in keys[:-1]:
        place = place[key]
    assert keys[-1] in place
    place[keys[-1]] = value
    return json.dumps(body)


def user_catalogue(*keys: str) -> Callable[[Any, Path], str]:
    def read(value: Any, folder: Path) -> str:
        path = folder / "prices.json"
        path.write_text(body_with(value, *keys))
        return str(read_catalogue(path))

    return read


def installed(value: Any, folder: Path) -> str:
    text = f"{value}".lower() if not isinstance(value, str) else f'"{value}"'
    head = 'schema_version = 1\nregion = "r"\non_demand_seen = "2026"\nspot_seen = "2026"\n'
    facts = '[types.x]\ngpu = "T4"\ngpus = 1\ngpu_memory_gib = 16\nnetwork_gbps = 5\n'
    return str(parse_catalogue(f"{head}{facts}on_demand_usd_per_hour = {text}\n"))


def answer(value: Any, folder: Path) -> str:
    seen = PricesSeen(region="r", zone_ids={}, facts={}, spot={KIND: {ZONE: value}}, quotas={})
    catalogue = refreshed(installed_catalogue(), seen, at="2026-07-20", source="asked")
    assert catalogue.find(KIND).spot_usd_per_hour is None
    return "; ".join(no_prices(seen).values())


def history(value: Any, folder: Path, **terms: Any) -> str:
    priced = spot_offers([record(value), record("0.3", zone="b")], zones=[ZONE, "b"], **terms)
    assert [offer.pool.zone for offer in priced.offers] == ["b"], "the others stay"
    return "; ".join(priced.left_out)


def record(value: Any, *, zone: str = ZONE, at: datetime = NOW) -> dict[str, Any]:
    return {
        "InstanceType": KIND,
        "AvailabilityZone": zone,
        "Timestamp": at,
        "SpotPrice": str(value) if not isinstance(value, bool) else value,
    }


def on_demand_table(value: Any, folder: Path) -> str:
    table = {KIND: value, "g5.xlarge": 1.006}
    priced = on_demand_offers(table, instance_types=list(table), zones=[ZONE])
    assert [offer.pool.instance_type for offer in priced.offers] == ["g5.xlarge"]
    return "; ".join(priced.left_out)


def series(value: Any, folder: Path, **terms: Any) -> str:
    path = folder / "prices.csv"
    path.write_text(f"ms,zone,usd_per_hour\n0,a,0.2\n1,a,{value}\n")
    return str(read_prices(path, **terms))


def bill_log(value: Any, folder: Path) -> str:
    start = {"kind": "start", "t": 1.0, "instance": "i", "zone": ZONE, "instance_type": KIND}
    start |= {"market": "spot", "usd_per_hour": value}
    return str(rented_from_journal([start], on_demand_usd_per_hour={KIND: ON_DEMAND}))


def ledger(field: str) -> Callable[[Any, Path], str]:
    def read(value: Any, folder: Path) -> str:
        good = PriceRecord(
            at_s=1.0,
            instance=InstanceId("i"),
            instance_type=KIND,
            zone=ZoneId(ZONE),
            market="spot",
            usd_per_hour=0.2,
            on_demand_usd_per_hour=ON_DEMAND,
        )
        return str(record_of({**record_body(good), field: value}))

    return read


READERS: Mapping[str, Callable[[Any, Path], str]] = {
    "a spot price of the user's catalogue": user_catalogue("types", KIND, "spot_by_zone", ZONE),
    "an on-demand price of it": user_catalogue("types", KIND, "on_demand_usd_per_hour"),
    "the price of a GB between zones": user_catalogue("auxiliary", "transfer", "usd"),
    "the installed catalogue": installed,
    "a cloud's answer to a refresh": answer,
    "EC2's spot price history": history,
    "an on-demand table": on_demand_table,
    "a series of prices": series,
    "a run's log of instances": bill_log,
    "a spot price in the ledger": ledger("usd_per_hour"),
    "an on-demand price in the ledger": ledger("on_demand_usd_per_hour"),
}
SHAPES = ("not a finite number", "not a number")
"""What a store's record has for what is no figure at all, before any price is looked at."""


@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_what_is_no_price_is_refused_or_left_out_in_the_same_words(
    read: Callable[[Any, Path], str], value: Any, tmp_path: Path
) -> None:
    try:
        said = read(value, tmp_path)
    except (InputError, UnreadableRecord, ValueError) as error:
        said = str(error)
    assert any(words in said for words in (said_of(value), said_of(str(value)), *SHAPES))


def test_a_spot_price_above_on_demand_is_left_out_by_plan_and_offers_and_refused_in_a_series(
    tmp_path: Path,
) -> None:
    words = said_of(ABOVE, on_demand_usd=ON_DEMAND)
    assert words == "0.9 USD is above the on-demand price of 0.526 USD"
    seen = PricesSeen(
        region="us-east-1",
        zone_ids={},
        facts={},
        spot={KIND: {ZONE: ABOVE, "us-east-1b": 0.2}},
        quotas={},
    )
    catalogue = refreshed(installed_catalogue(), seen, at="2026-07-20", source="asked")
    zones = [ZONE, "us-east-1b"]
    assert catalogue.spot_prices([KIND], zones) == {KIND: {"us-east-1b": 0.2}}
    sentence = f"{KIND} on spot in {ZONE} is left out: {words}"
    assert catalogue.left_out([KIND], zones) == (sentence,)
    assert catalogue.left_out([KIND]) == (sentence,)
    assert catalogue.left_out([KIND], ["us-east-1b"]) == ()
    with pytest.raises(InputError, match=r"0\.9 USD is above the .*; take another zone, or market"):
        catalogue.modelled_spot_usd_per_hour(KIND, ZONE)
    kept = catalogue_from(json.loads(catalogue_json(catalogue)))
    assert kept.left_out([KIND]) == (sentence,), "a run's own prices say so too"
    assert history(ABOVE, tmp_path, ceilings=catalogue.ceilings()) == sentence
    with pytest.raises(InputError, match=r"line 3: '1,a,0\.9': 0\.9 USD is above the on-demand"):
        series(ABOVE, tmp_path, on_demand_usd=ON_DEMAND)
    at_the_price = spot_offers([record(ON_DEMAND)], zones=[ZONE], ceilings={KIND: ON_DEMAND})
    assert (len(at_the_price.offers), at_the_price.left_out) == (1, ())


def test_a_spot_price_above_the_on_demand_price_of_another_region_is_taken_with_a_word() -> None:
    seen = PricesSeen(
        region="eu-west-1", zone_ids={}, facts={}, spot={KIND: {"eu-west-1a": ABOVE}}, quotas={}
    )
    asked = refreshed(installed_catalogue(), seen, at="2026-07-20", source="asked")
    far = replace(asked, on_demand_region="us-east-1")
    assert far.spot_prices([KIND], ["eu-west-1a"]) == {KIND: {"eu-west-1a": ABOVE}}
    assert (far.ceilings(), far.left_out([KIND])) == ({}, ())
    assert price_warnings(far, [KIND]) == (
        f"{KIND} on spot in eu-west-1a is taken at 0.9 USD, above the on-demand price of 0.526 "
        "USD, which is that of us-east-1",
    )
    assert price_warnings(far, [KIND], ["eu-west-1b"]) == ()


def test_an_instance_that_was_bought_above_on_demand_is_billed_so_and_the_receipt_says_it() -> None:
    records = [
        {"kind": "start", "t": 0.0, "instance": name, "zone": "a", "instance_type": KIND}
        | {"market": "spot", "usd_per_hour": usd}
        for name, usd in (("i-1", 0.2), ("i-2", ABOVE))
    ]
    rented = rented_from_journal(records, on_demand_usd_per_hour={KIND: ON_DEMAND})
    calm, dear = bill(rented, now_s=3600.0, modelled=False).lines
    assert (calm.usd, calm.note) == (0.2, "")
    assert (dear.usd, dear.note) == (0.9, "bought above the on-demand price")


def test_a_price_of_a_day_to_come_is_none(tmp_path: Path) -> None:
    today = NOW.date()
    check_seen(NOW + timedelta(days=1), today=today)
    with pytest.raises(BadPrice, match="is still to come, as the clock here says 2026-11-26"):
        check_seen(NOW + timedelta(days=2), today=today)
    late = record(0.2, at=NOW + timedelta(days=3))
    priced = spot_offers([record(0.4), late], zones=[ZONE], today=today)
    assert not priced.offers, "the price before it is none of now either"
    assert priced.left_out == (
        f"{KIND} on spot in {ZONE} is left out: '2026-11-29' is still to come, as the clock here "
        "says 2026-11-26",
    )
    for keys in (("types", KIND, "spot_seen"), ("auxiliary", "transfer", "seen")):
        path = tmp_path / "prices.json"
        path.write_text(body_with("2999-01-01", *keys))
        with pytest.raises(InputError, match=r"is damaged: '2999-01-01' is still to come"):
            read_catalogue(path)


# ------------------------------------------------------------------------------ every reader


MODULES = {
    "bamboo/config/catalogue.py",
    "bamboo/coord/codec.py",
    "bamboo/planner/prices/catalogue.py",
    "bamboo/planner/prices/price_warnings.py",
    "bamboo/planner/prices/refreshed.py",
    "bamboo/sim/market/prices.py",
    "bamboo/billing/money.py",
    "cloud/ec2/pricing.py",
}
"""Whoever uses the check: a new one has a line in READERS, or is no reader."""
CHECK = {"BadPrice", "check_seen", "checked_usd"}
FIGURES = {"float", "_number", "_figure", "Decimal"}
PRICE = ("price", "per_hour", "SpotPrice")


def sources() -> Mapping[str, ast.Module]:
    paths = [p for room in ("bamboo", "cloud", "cli") for p in (ROOT / room).rglob("*.py")]
    texts = {p.relative_to(ROOT).as_posix(): p.read_text("utf-8") for p in paths}
    return {n: ast.parse(t) for n, t in texts.items() if any(word in t for word in PRICE)}


def test_no_module_reads_a_price_but_by_the_check() -> None:
    users, others = set(), []
    for name, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "bamboo.value":
                users |= {name for one in node.names if one.name in CHECK}
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in FIGURES
                and any(word in ast.unparse(node) for word in PRICE)
            ):
                others.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert users == MODULES
    assert others == []
