"""What is written is read back: events whole, counts as far as counts go."""

from pathlib import Path

import pytest
from hypothesis import given

from bamboo.errors import InputError
from bamboo.sim.market.trace import Trace, parse_trace
from bamboo.sim.market.trace_stats import series
from bamboo.sim.market.trace_text import WRITERS, write_counts, write_events, write_series
from tests.sim.markets import trace, traces

pytestmark = pytest.mark.timeout(60)
MARKET = trace(
    (0, "+a@east"), (0, "+b"), (0, "+c"), (90, "-a"), (90, "-b"), (100.5, "-c"), (100.5, "+d"),
    (130.5, "+e"), length_s=150.5,
)  # fmt: skip


def test_events_as_text() -> None:
    assert write_events(MARKET) == (
        "0,add,a,east\n0,add,b\n0,add,c\n90000,remove,a\n90000,remove,b\n100500,remove,c\n"
        "100500,add,d\n130500,add,e\n150500,end\n"
    )
    assert write_events(trace((0, "+a"), (5, "-a"))) == "0,add,a\n5000,remove,a\n"


def test_counts_as_text() -> None:
    assert write_counts(MARKET) == (
        "2000-01-01, 00:00:00, 3\n2000-01-01, 00:01:30, 1\n"
        "2000-01-01, 00:02:10.500, 2\n2000-01-01, 00:02:30.500, 2\n"
    )
    assert write_counts(MARKET, gap_s=60) == (
        "2000-01-01, 00:00:00, 3\n2000-01-01, 00:01:00, 3\n"
        "2000-01-01, 00:02:00, 1\n2000-01-01, 00:03:00, 2\n"
    )


def test_a_series_as_text() -> None:
    assert write_series(MARKET) == '{"metadata": {"gap_seconds": 60}, "data": [3, 3, 1, 2]}\n'
    assert write_series(MARKET, gap_s=50.5) == (
        '{"metadata": {"gap_seconds": 50.5}, "data": [3, 3, 1, 2]}\n'
    )
    assert write_series(trace((0, "+a"), (120, "-a"))).endswith("[1, 1, 0]}\n")


@given(market=traces())
def test_events_are_read_back_whole(market: Trace) -> None:
    back = parse_trace(write_events(market), Path(market.source))
    assert back.events == market.events
    assert back.length_s == market.length_s


@given(market=traces())
def test_counts_are_read_back_as_the_same_levels(market: Trace) -> None:
    back = parse_trace(write_counts(market), Path("counts"))
    assert series(back) == series(market)
    assert back.length_s == market.length_s


@given(market=traces())
def test_a_series_is_read_back_as_what_was_sampled(market: Trace) -> None:
    back = parse_trace(write_series(market, gap_s=7.0), Path("series"))
    assert market.length_s <= back.length_s < market.length_s + 7.0
    levels = {level.at_s: level.alive for level in series(back)}
    alive = 0
    for tick in range(round(back.length_s / 7.0) + 1):
        alive = levels.get(tick * 7.0, alive)
        there = [level.alive for level in series(market) if level.at_s <= tick * 7.0]
        assert alive == there[-1]


@pytest.mark.parametrize("form", ["counts", "json"])
@pytest.mark.parametrize(
    ("gap_s", "says"),
    [
        (0.0, "--gap-seconds 0 is no gap; give seconds above 0, such as 60"),
        (-1.0, "is no gap"),
        (float("nan"), "is no gap"),
        (float("inf"), "is no gap"),
        (1e-6, "are more than 1,000,000 counts; give a larger gap"),
        (1e-320, "are more than 1,000,000 counts; give a larger gap"),
        (1e-300, "are more than 1,000,000 counts; give a larger gap"),
    ],
)
def test_gaps_that_make_no_counts(form: str, gap_s: float, says: str) -> None:
    with pytest.raises(InputError) as caught:
        WRITERS[form](MARKET, gap_s=gap_s)
    assert says in str(caught.value)


def test_events_have_no_gap() -> None:
    with pytest.raises(InputError, match="events have no gap; leave it out"):
        WRITERS["events"](MARKET, gap_s=60.0)
