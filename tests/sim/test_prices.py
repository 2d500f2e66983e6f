"""Spot prices by zone and over time."""

from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.errors import InputError
from bamboo.ids import ZoneId
from bamboo.sim.market.prices import Prices, constant, read_prices
from bamboo.sim.run import simulate
from tests.sim.worlds import asked, trace

A, B = ZoneId("a"), ZoneId("b")


def prices(tmp_path: Path, text: str) -> Prices:
    path = tmp_path / "prices.csv"
    path.write_text(text)
    return read_prices(path)


def test_each_second_is_charged_its_price(tmp_path: Path) -> None:
    found = prices(tmp_path, "0,a,1.0\n3600000,a,3.0\n1000000,,0.5\n")
    assert found.mean_usd_per_hour(A, 0, 3600) == 1.0
    assert found.mean_usd_per_hour(A, 0, 7200) == 2.0
    assert found.mean_usd_per_hour(A, 1800, 5400) == 2.0
    assert found.mean_usd_per_hour(A, 4000, 9000) == pytest.approx(3.0)
    assert found.mean_usd_per_hour(A, 4000, 4000) == 3.0
    assert found.mean_usd_per_hour(B, 0, 10) == 0.5, "the first price holds before it, too"
    assert found.scaled(0.5).mean_usd_per_hour(A, 0, 3600) == 2.0


def test_a_zone_without_a_price_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no price for zone 'b'"):
        prices(tmp_path, "0,a,1.0\n").mean_usd_per_hour(B, 0, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("0,a\n", "line 1: '0,a': write"),
        ("0,a,1\nx,a,1\n", "line 2: 'x,a,1': the time is no whole"),
        ("0,a,0\n", "above 0"),
        ("0,a,nan\n", "nan is not finite"),
        ("0,a,cheap\n", "'cheap' is no number"),
        ("-5,a,1\n", "the time is none"),
        ("5,a,1\n4,a,1\n", "goes back in time"),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        prices(tmp_path, text)


def test_a_byte_order_mark_is_no_part_of_a_price(tmp_path: Path) -> None:
    assert prices(tmp_path, "\ufeff0,a,1.5\r\n").mean_usd_per_hour(A, 0, 1) == 1.5


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name a file that is there"):
        read_prices(tmp_path / "none.csv")


def test_a_run_is_billed_by_them(tmp_path: Path) -> None:
    one = asked()
    market = trace("0 +a b c d")
    assert simulate(one, market).usd == 4.0
    series = prices(tmp_path, "0,,1.0\n1800000,,3.0\n")
    assert simulate(replace(one, prices=series), market).usd == pytest.approx(8.0)
    assert constant(2.0).mean_usd_per_hour(A, 0, 9) == 2.0
