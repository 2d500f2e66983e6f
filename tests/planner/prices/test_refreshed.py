"""A catalogue with a cloud's answer in it, the newest of two, and one as text."""

import json
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.config.catalogue import installed_catalogue
from bamboo.errors import InputError
from bamboo.planner.origin import Origin, last_moment
from bamboo.planner.prices.catalogue import Catalogue, catalogue_from
from bamboo.planner.prices.refreshed import catalogue_json, newest, refreshed
from bamboo.ports import PricesSeen, TypeFacts

BASE = installed_catalogue()
AT = "2026-12-01T10:00:00Z"
T4 = TypeFacts(gpu="T4", gpus=1, gpu_memory_mib=15360, vcpus=8, network_gbps=None)
SEEN = PricesSeen(
    region="us-east-1",
    zone_ids={"us-east-1a": "use1-az4", "us-east-1b": "use1-az6"},
    facts={"g4dn.xlarge": T4, "g5.xlarge": replace(T4, gpu="A10G", network_gbps=3.5)},
    spot={"g4dn.xlarge": {"us-east-1b": 0.5, "us-east-1a": 0.16}},
    quotas={"L-3819A6DF": 64.0},
)
ASKED = refreshed(BASE, SEEN, at=AT, source="asked")


def test_what_was_asked_is_new_and_what_was_not_keeps_its_date() -> None:
    kind = ASKED.find("g4dn.xlarge")
    assert kind.spot_by_zone == {"us-east-1a": 0.16, "us-east-1b": 0.5}
    assert kind.spot_usd_per_hour == (0.16, 0.5)
    assert kind.spot_from == Origin(seen=AT, source="asked")
    assert (kind.vcpus, kind.gpu_memory_gib, kind.network_gbps) == (8, 15.0, 5)
    assert kind.on_demand_from == BASE.find("g4dn.xlarge").on_demand_from
    assert ASKED.find("g5.xlarge").network_gbps == 3.5
    assert ASKED.find("g5.xlarge").host_memory_gib == 16, "nobody asks for it"
    assert ASKED.quotas["L-3819A6DF"].vcpus == 64
    assert [kind.lacks_discount(price) for price in (0.16, 0.4733, 0.4735, 0.526, 0.6)] == [
        *(False, False),
        *(True, True, True),
    ]


def test_zones_are_quoted_as_seen_and_zones_without_a_pool_have_no_price() -> None:
    zones = ["us-east-1a", "us-east-1c", "us-east-1b"]
    assert ASKED.spot_prices(["g4dn.xlarge", "g5.xlarge"], zones) == {
        "g4dn.xlarge": {"us-east-1a": 0.16, "us-east-1b": 0.5}
    }
    with pytest.raises(InputError, match=r"no spot pool of g4dn\.xlarge in us-east-1c as of 2026"):
        ASKED.modelled_spot_usd_per_hour("g4dn.xlarge", "us-east-1c")
    with pytest.raises(InputError, match=r"no spot price of g5\.xlarge"):
        ASKED.modelled_spot_usd_per_hour("g5.xlarge", "us-east-1a")
    assert (ASKED.find("g5.xlarge").offered, ASKED.find("p3.2xlarge").offered) == (True, False)


def test_the_sources_of_both_markets_are_said_with_their_ages() -> None:
    both = replace(newest(BASE, ASKED), today=date(2026, 12, 2), file="F")
    assert both.sources(["g4dn.xlarge"]) == (
        f"on-demand as of 2026-07-20 (135 days old); spot as seen {AT} (1 day old); by F"
    )
    assert both.sources(["p3.2xlarge"]) == "on-demand as of 2026-07-20 (135 days old); by F"
    asked = replace(BASE, today=date(2026, 12, 2))
    assert asked.sources(["g5.xlarge", "g4dn.xlarge"]).endswith(
        "spot is modelled from 2025-07-01 to 2025-12-31 (336 days old), 2026 (335 days old); by "
        "the installed catalogue"
    )
    assert "days" not in BASE.sources(["g5.xlarge"])


def test_the_text_comes_back() -> None:
    for catalogue in (BASE, ASKED):
        text = catalogue_json(catalogue)
        back = catalogue_from(json.loads(text), file=catalogue.file)
        assert back == catalogue
        assert catalogue_json(back) == text


# ------------------------------------------------------------------------------ the newest

DAYS = st.integers(1, 28).map(lambda day: f"2026-12-{day:02}")
PRICES = st.floats(0.01, 0.5)


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    """Types with prices of drawn days; a type may lack, and may have been seen without a pool."""
    types = {}
    for name in draw(st.sets(st.sampled_from(["g4dn.xlarge", "g5.xlarge", "p3.2xlarge"]))):
        spot = draw(st.none() | PRICES)
        types[name] = replace(
            BASE.types[name],
            on_demand_usd_per_hour=draw(st.floats(1, 2)),
            on_demand_from=Origin(seen=draw(DAYS), source=draw(st.sampled_from("ab"))),
            spot_usd_per_hour=None if spot is None else (spot, spot),
            spot_from=draw(st.none() | DAYS.map(lambda seen: Origin(seen=seen, source="c"))),
        )
    return replace(BASE, types=types, taken=draw(DAYS), spot_seen=draw(DAYS))


@given(catalogues(), catalogues())
def test_of_each_price_the_one_seen_later(first: Catalogue, second: Catalogue) -> None:
    both = newest(first, second)
    assert set(both.types) == set(first.types) | set(second.types)
    for name, kind in both.types.items():
        held = [c.types[name] for c in (first, second) if name in c.types]
        for field in ("on_demand_from", "spot_from"):
            seen = [origin.until for k in held if (origin := getattr(k, field)) is not None]
            origin = getattr(kind, field)
            assert (origin is None and not seen) or origin.until == max(seen)
        prices = {(k.on_demand_usd_per_hour, k.on_demand_from) for k in held}
        assert (kind.on_demand_usd_per_hour, kind.on_demand_from) in prices
        assert (kind.spot_usd_per_hour, kind.spot_from) in {
            (k.spot_usd_per_hour, k.spot_from) for k in held
        }
    assert last_moment(both.taken) == max(last_moment(c.taken) for c in (first, second))
    assert newest(first, first) == first
    assert newest(first, both).types == both.types


def test_prices_of_another_region_do_not_take_the_place_of_a_zone_s() -> None:
    far = refreshed(BASE, replace(SEEN, region="eu-west-1"), at="2025-06-01", source="asked")
    both = newest(BASE, far)
    assert both.region == "eu-west-1"
    assert both.find("g4dn.xlarge").spot_by_zone == far.find("g4dn.xlarge").spot_by_zone
    assert not newest(BASE, replace(far, region=BASE.region)).find("g4dn.xlarge").spot_by_zone


def test_what_stands_beside_the_instances_is_the_newest_too() -> None:
    disk = BASE.auxiliary["disk"]

    def with_disk(usd: float, seen: str) -> Catalogue:
        price = replace(disk, usd=usd, origin=Origin(seen=seen, source="list"))
        return replace(BASE, auxiliary={"disk": price})

    old, new = with_disk(0.1, "2020-01-01"), with_disk(0.2, "2027-01-01")
    for both in (newest(BASE, new), newest(new, BASE), newest(old, new), newest(new, old)):
        assert both.auxiliary["disk"].usd == 0.2
    assert newest(BASE, old).auxiliary == BASE.auxiliary


def test_a_newer_release_is_not_hidden_by_an_older_answer() -> None:
    """The installed catalogue of a later release has on-demand prices that the user's has not."""
    later = Origin(seen="2027-01-01", source="list")
    kind = replace(BASE.types["g5.xlarge"], on_demand_usd_per_hour=0.9, on_demand_from=later)
    release = replace(BASE, types={**BASE.types, "g5.xlarge": kind}, taken="2027-01-01")
    both = newest(release, ASKED)
    assert both.find("g5.xlarge").on_demand_usd_per_hour == 0.9
    assert both.find("g4dn.xlarge").spot_by_zone == ASKED.find("g4dn.xlarge").spot_by_zone
    assert both.find("g4dn.xlarge").vcpus == 4
