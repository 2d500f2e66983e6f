"""The figures of a trace, by hand where they are small, and those of the published one."""

from pathlib import Path

import pytest
from hypothesis import given

from bamboo.sim.market.trace import Trace, read_trace
from bamboo.sim.market.trace_stats import Gaps, Instant, Level, ZoneStats, instants, series, stats
from tests.sim.markets import trace, traces

pytestmark = pytest.mark.timeout(60)
SHARED = Path(__file__).parents[3] / "shared" / "traces"

HOUR = 3600
MARKET = trace(
    (0, "+a@east"), (0, "+b@east"), (0, "+c@west"), (0, "+d@west"),
    (1 * HOUR, "-a"),
    (2 * HOUR, "-b"), (2 * HOUR, "-c"),
    (2.5 * HOUR, "+e@west"),
    (3 * HOUR, "+f@east"),
    (4 * HOUR, "-d"),
    (4 * HOUR, "-e"), (4 * HOUR, "-f"),
    length_s=5 * HOUR,
)  # fmt: skip


def test_the_figures_of_a_small_market() -> None:
    found = stats(MARKET)
    assert (found.at_begin, found.peak, found.joins) == (4, 4, 2)
    # 4 for an hour, 3 for one, 1 for half, 2 for half, 3 for one, none for one.
    assert found.node_hours == pytest.approx(4 + 3 + 0.5 + 1 + 3)
    assert found.mean_nodes == pytest.approx(11.5 / 5)
    assert found.preemptions == 6
    assert found.preemptions_per_node_hour == pytest.approx(6 / 11.5)
    assert (found.instants, found.bulk) == (3, ((1, 1), (2, 1), (3, 1)))
    assert (found.bulk_mean, found.bulk_most) == (2.0, 3)
    assert found.bulk_share == pytest.approx(2 / 3)
    assert found.taken_mean == pytest.approx((1 / 4 + 2 / 3 + 3 / 3) / 3)
    assert (found.taken_most, found.took_all) == (1.0, 1)
    assert found.gaps == Gaps(median_s=1.5 * HOUR, mean_s=1.5 * HOUR, p90_s=2.0 * HOUR)
    # After 1 h never four again; after 2 h three at 3 h; after 4 h never any.
    assert (found.back_s, found.never_back) == (None, 2)
    assert found.spans == pytest.approx(2 / 3)
    assert found.zones == (
        ZoneStats(zone="east", peak=2, mean_nodes=pytest.approx(4 / 5), preemptions=3),
        ZoneStats(zone="west", peak=2, mean_nodes=pytest.approx(7.5 / 5), preemptions=3),
    )


def test_the_levels_and_instants_of_a_small_market() -> None:
    levels = [(level.at_s / HOUR, level.alive) for level in series(MARKET)]
    assert levels == [(0, 4), (1, 3), (2, 1), (2.5, 2), (3, 3), (4, 0)]
    assert instants(MARKET)[1] == Instant(
        at_s=2 * HOUR, taken=2, alive_before=3, zones=frozenset({"east", "west"})
    )


def test_how_soon_as_many_are_back() -> None:
    market = trace(
        (0, "+a"), (0, "+b"), (0, "+c"), (10, "-a"), (20, "-b"), (25, "+d"), (40, "+e"), (50, "-c"),
        (50, "+f"),
    )  # fmt: skip
    # Three after 10 s: at 40 s. Two after 20 s: at 25 s. At 50 s one comes as one goes.
    assert stats(market).back_s == 5.0
    assert stats(market).never_back == 0


def test_a_market_that_takes_nobody() -> None:
    found = stats(trace((0, "+a"), (60, "+b")))
    assert (found.instants, found.preemptions_per_node_hour, found.bulk) == (0, 0.0, ())
    assert (found.bulk_most, found.taken_most, found.back_s) == (0, 0.0, None)
    assert found.gaps == Gaps(median_s=0.0, mean_s=0.0, p90_s=0.0)
    assert (found.zones, found.spans) == ((), None)
    only = stats(trace((0, "+a")))
    assert (only.length_s, only.mean_nodes, only.node_hours) == (0.0, 1.0, 0.0)


def test_zones_count_only_where_every_node_has_one() -> None:
    assert stats(trace((0, "+a@east"), (0, "+b"), (9, "-a"), (9, "-b"))).zones == ()
    one = stats(trace((0, "+a@east"), (9, "-a")))
    assert ([zone.zone for zone in one.zones], one.spans) == (["east"], None)


@given(market=traces())
def test_the_figures_fit_together(market: Trace) -> None:
    found = stats(market)
    assert found.at_begin >= 0
    assert sum(size * times for size, times in found.bulk) == found.preemptions
    assert sum(times for _, times in found.bulk) == found.instants == len(instants(market))
    assert found.mean_nodes <= found.peak
    assert 0 <= found.taken_mean <= found.taken_most <= 1
    assert 0 <= found.never_back <= found.instants
    assert sum(zone.preemptions for zone in found.zones) in (0, found.preemptions)
    levels = series(market)
    assert [level.at_s for level in levels] == sorted({level.at_s for level in levels})
    alive = sum(1 if event.comes else -1 for event in market.events)
    assert levels[-1] == Level(at_s=levels[-1].at_s, alive=alive)


def test_the_published_trace_has_the_published_figures() -> None:
    path = SHARED / "bamboo-p3.csv"
    if not path.exists():
        pytest.skip("the recorded trace bamboo-p3.csv is not at hand")
    found = stats(read_trace(path))
    assert (found.peak, found.preemptions, found.instants) == (32, 167, 79)
    assert round(found.preemptions_per_node_hour, 2) == 0.61
    assert sum(times for size, times in found.bulk if 2 <= size <= 6) == 40
    assert (found.bulk_most, found.gaps.median_s) == (6, 240.0)
    assert round(found.length_s / 3600, 1) == 11.4
