"""What is said of prices that are old or of a day to come, and of pools that are left out."""

from dataclasses import replace
from datetime import date, timedelta

from bamboo.config.catalogue import installed_catalogue
from bamboo.planner.origin import Origin
from bamboo.planner.prices.price_warnings import price_warnings
from bamboo.planner.prices.refreshed import refreshed
from bamboo.ports import PricesSeen
from bamboo.value import LIST_DAYS, QUOTE_DAYS

DAY = date(2026, 11, 26)
BASE = replace(installed_catalogue(), today=DAY)
SEEN = PricesSeen(
    region="us-east-1",
    zone_ids={},
    facts={},
    spot={"g4dn.xlarge": {"us-east-1a": 0.2}, "g5.xlarge": {"us-east-1a": 1.7}},
    quotas={},
)
ASKED = refreshed(BASE, SEEN, at=DAY.isoformat(), source="asked")


def test_prices_of_now_and_the_lists_of_a_release_are_not_old() -> None:
    assert price_warnings(BASE, BASE.types) == ()
    assert price_warnings(ASKED, ["g4dn.xlarge"]) == ()


def test_a_quote_is_old_after_a_week_and_says_how_it_is_asked_for_again() -> None:
    last = replace(ASKED, today=DAY + timedelta(days=QUOTE_DAYS))
    assert price_warnings(last, ["g4dn.xlarge"]) == ()
    old = replace(ASKED, today=DAY + timedelta(days=QUOTE_DAYS + 1))
    assert price_warnings(old, ["g4dn.xlarge"]) == (
        "spot prices of g4dn.xlarge are up to 8 days old, over 7: ask EC2 with `bamboo prices "
        "--refresh --region us-east-1`",
    )
    assert price_warnings(old, ["g4dn.xlarge"], spot=False) == ()
    assert price_warnings(replace(old, today=None), ["g4dn.xlarge"]) == ()


def test_a_list_is_old_after_two_years() -> None:
    old = replace(BASE, today=date(2026, 7, 20) + timedelta(days=LIST_DAYS + 1))
    spot, on_demand = price_warnings(old, ["g4dn.xlarge"])
    assert spot.startswith("spot prices of g4dn.xlarge are up to ")
    assert on_demand == (
        f"on-demand prices of g4dn.xlarge are up to {LIST_DAYS + 1} days old, over {LIST_DAYS}: "
        "take a newer release"
    )
    (_, every) = price_warnings(old, BASE.types)
    assert " more types are up to " in every


def test_prices_of_a_day_to_come_blame_the_clock() -> None:
    early = replace(BASE, today=date(2026, 1, 2))
    assert price_warnings(early, ["g4dn.xlarge"]) == (
        "on-demand prices of g4dn.xlarge: '2026-07-20' is still to come, as the clock here says "
        "2026-01-02; set the clock",
    )


def test_a_pool_that_is_left_out_is_said_where_it_would_have_been_used() -> None:
    sentence = (
        "g5.xlarge on spot in us-east-1a is left out: 1.7 USD is above the on-demand price of "
        "1.006 USD"
    )
    assert price_warnings(ASKED, ["g4dn.xlarge", "g5.xlarge"]) == (sentence,)
    assert price_warnings(ASKED, ["g5.xlarge"], ["us-east-1a", "x"]) == (sentence,)
    assert price_warnings(ASKED, ["g5.xlarge"], ["x"]) == ()
    assert price_warnings(ASKED, ["g5.xlarge", "no.such"], spot=False) == ()


def test_a_range_above_an_on_demand_price_that_fell_later_is_left_out_in_all_zones() -> None:
    kind = replace(
        BASE.types["g5.xlarge"],
        on_demand_usd_per_hour=0.3,
        on_demand_from=Origin(seen="2026-11-01", source="list"),
    )
    fell = replace(BASE, types={"g5.xlarge": kind})
    assert len(price_warnings(fell, ["g5.xlarge"], ["a", "b"])) == 2
    assert fell.spot_prices(["g5.xlarge"], ["a", "b"]) == {"g5.xlarge": {}}
