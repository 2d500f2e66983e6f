"""A trace made longer or wider is the trace: what a seam adds is what is said, and no more."""

import time
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bamboo.errors import InputError
from bamboo.sim.market.presets import preset
from bamboo.sim.market.synth import synthesise
from bamboo.sim.market.trace import Trace, parse_trace
from bamboo.sim.market.trace_shape import Tiling, multiplied, tiled, tiling
from bamboo.sim.market.trace_stats import series, stats
from bamboo.sim.market.trace_text import write_events
from tests.sim.markets import told, trace, traces

pytestmark = pytest.mark.timeout(60)


def alive(market: Trace, at_s: float) -> int:
    levels = series(market)
    return levels[bisect_right([level.at_s for level in levels], at_s) - 1].alive


def test_who_is_left_at_the_end_takes_a_part_of_the_begin() -> None:
    market = trace((0, "+a"), (0, "+b"), (0, "+c"), (5, "-a"), (6, "-b"), (8, "+d"), (10, "+e"))
    # At the end c, d, e; at the begin a, b, c. c goes on as itself, d plays a, e plays b.
    assert tiling(market, hours=20 / 3600) == Tiling(plays=2, comes=0, goes=0)
    assert told(tiled(market, hours=20 / 3600))[7:] == ["15 -d", "16 -e", "18 +d~2", "20 +e~2"]


def test_parts_that_nobody_is_left_for_come_at_the_seam() -> None:
    market = trace((0, "+a"), (0, "+b"), (5, "-a"), (6, "-b"), (8, "+a"), (10, "-a"))
    assert tiling(market, hours=30 / 3600) == Tiling(plays=3, comes=2, goes=0)
    assert told(tiled(market, hours=25 / 3600))[6:] == [
        "10 +a~2", "10 +b~2", "15 -a~2", "16 -b~2", "18 +a~2", "20 -a~2",
        "20 +a~3", "20 +b~3", "25 -a~3",
    ]  # fmt: skip


def test_who_is_too_many_goes_at_the_seam() -> None:
    market = trace((0, "+a"), (5, "+b"), (7, "-a"), (8, "+c"), length_s=10)
    assert tiling(market, hours=30 / 3600) == Tiling(plays=3, comes=0, goes=1)
    assert told(tiled(market, hours=30 / 3600))[4:] == [
        "10 -c", "15 +b~2", "17 -b", "18 +c~2", "20 -c~2", "25 +b~3", "27 -b~2", "28 +c~3",
    ]  # fmt: skip


def test_parts_are_taken_within_the_zone() -> None:
    market = trace((0, "+a@east"), (5, "-a"), (6, "+b@west"), length_s=10)
    assert tiling(market, hours=20 / 3600) == Tiling(plays=2, comes=1, goes=1)
    longer = tiled(market, hours=15 / 3600)
    assert told(longer)[3:] == ["10 -b", "10 +a~2", "15 -a~2"]
    assert [event.zone for event in longer.events[3:]] == ["west", "east", "east"]
    both = trace((0, "+a@east"), (5, "-a"), (6, "+b@west"), (7, "+c@east"), length_s=10)
    assert tiling(both, hours=20 / 3600) == Tiling(plays=2, comes=0, goes=1)
    assert told(tiled(both, hours=15 / 3600))[4:] == ["10 -b", "15 -c"]


def test_a_longer_trace_is_cut() -> None:
    market = trace((0, "+a"), (5, "-a"), (10, "+b"))
    cut = tiled(market, hours=7 / 3600)
    assert told(cut) == ["0 +a", "5 -a"]
    assert cut.length_s == pytest.approx(7.0)
    assert tiling(market, hours=7 / 3600) == Tiling(plays=1, comes=0, goes=0)
    assert tiled(market, hours=10 / 3600) == market


def test_a_trace_of_no_length_lasts_on() -> None:
    longer = tiled(trace((0, "+a"), (0, "+b")), hours=2.0)
    assert (told(longer), longer.length_s) == (["0 +a", "0 +b"], 7200.0)


@given(market=traces(), plays=st.integers(1, 4))
def test_any_trace_played_again_is_a_trace_with_as_many_alive(market: Trace, plays: int) -> None:
    assume(market.length_s > 0)
    longer = tiled(market, hours=plays * market.length_s / 3600)
    assert parse_trace(write_events(longer), Path(market.source)).events == longer.events
    times = sorted({0.0, market.length_s, *(event.at_s for event in market.events)})
    for early_s, late_s in pairwise(times):
        for play in range(plays):
            middle_s = play * market.length_s + (early_s + late_s) / 2
            assert alive(longer, middle_s) == alive(market, (early_s + late_s) / 2)
    seams = tiling(market, hours=plays * market.length_s / 3600)
    assert seams.plays == plays
    at_begin = sum(not event.comes and event.at_s == 0 for event in market.events)
    lost = plays * (market.preemptions - at_begin) + at_begin + (plays - 1) * seams.goes
    assert longer.preemptions == lost


@given(market=traces(), times=st.integers(1, 3))
def test_copies_come_and_go_together(market: Trace, times: int) -> None:
    wider = multiplied(market, times=times)
    assert parse_trace(write_events(wider), Path("wider")).events == wider.events
    one, all_of_them = stats(market), stats(wider)
    assert all_of_them.peak == times * one.peak
    assert all_of_them.instants == one.instants
    assert all_of_them.bulk == tuple((times * size, count) for size, count in one.bulk)
    assert all_of_them.preemptions_per_node_hour == pytest.approx(one.preemptions_per_node_hour)


def test_copies_have_names_of_their_own() -> None:
    market = trace((0, "+a"), (5, "-a"))
    assert multiplied(market, times=1) is market
    assert told(multiplied(market, times=2)) == ["0 +a+1", "0 +a+2", "5 -a+1", "5 -a+2"]


def test_what_would_be_too_much_is_refused() -> None:
    market = trace((0, "+a"), (0.001, "-a"))
    with pytest.raises(
        InputError, match=r"0\.001 s played over 24 h are more than 1,000,000 events"
    ):
        tiled(market, hours=24.0)
    with pytest.raises(InputError, match="0 copies of test are none; give at least 1"):
        multiplied(market, times=0)
    with pytest.raises(InputError, match="600000 copies of test are more than 1,000,000 events"):
        multiplied(market, times=600_000)


def test_a_day_of_64_nodes_takes_no_time() -> None:
    half_day = synthesise(preset("busy", nodes=32), seed=1, hours=11.4)
    took_s = []
    for _ in range(10):
        begin_s = time.process_time()
        wide = multiplied(tiled(half_day, hours=24.0), times=2)
        took_s.append(time.process_time() - begin_s)
    assert stats(wide).peak == 64
    assert min(took_s) < 0.02
