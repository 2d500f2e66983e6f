"""Made-up markets have the figures they were asked for, on average over seeds."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.errors import InputError
from bamboo.sim.market.presets import P3_BULK, PRESETS, preset
from bamboo.sim.market.synth import (
    Market,
    ZoneNodes,
    fit,
    geometric,
    hazard_market,
    spread,
    synthesise,
)
from bamboo.sim.market.trace import Trace, parse_trace
from bamboo.sim.market.trace_stats import TraceStats, series, stats
from bamboo.sim.market.trace_text import write_events
from tests.sim.markets import trace

pytestmark = pytest.mark.timeout(60)

SPANNING = Market(
    zones=spread(30, ("a", "b", "c")),
    preemptions_per_node_hour=0.5,
    bulk=P3_BULK,
    spans=0.2,
    back_s=1800.0,
)


def many(market: Market, *, hours: float = 48.0, seeds: int = 40) -> list[TraceStats]:
    return [stats(synthesise(market, seed=seed, hours=hours)) for seed in range(seeds)]


def pooled_rate(found: list[TraceStats]) -> float:
    return sum(one.preemptions for one in found) / sum(one.node_hours for one in found)


def mean_nodes(found: list[TraceStats]) -> float:
    return sum(one.mean_nodes for one in found) / len(found)


def share(found: list[TraceStats], size: int) -> float:
    """Of all instants, those that took so many."""
    return sum(dict(one.bulk).get(size, 0) for one in found) / sum(one.instants for one in found)


def test_hazard_bulk_spans_and_mean_nodes_are_what_was_asked_for() -> None:
    found = many(SPANNING)
    assert pooled_rate(found) == pytest.approx(0.5, rel=0.03)
    # A zone has ten nodes at most: hardly ever does a bulk find fewer than it takes.
    for size, probability in P3_BULK:
        assert share(found, size) == pytest.approx(probability, abs=0.015)
    spanning = sum((one.spans or 0.0) * one.instants for one in found)
    assert spanning / sum(one.instants for one in found) == pytest.approx(0.2, abs=0.015)
    assert mean_nodes(found) == pytest.approx(SPANNING.mean_nodes, rel=0.02)


@pytest.mark.parametrize("nodes", [3, 24])
def test_each_node_has_its_hazard_however_few_are_alive(nodes: int) -> None:
    # Half a day away on average, in bulks that want more than there are: the few that are left
    # are lost as often as the many were.
    market = hazard_market(
        nodes=nodes, preemptions_per_node_hour=0.3, bulk=max(2, nodes / 2), back_s=12 * 3600.0
    )
    found = many(market, hours=400.0, seeds=60)
    assert mean_nodes(found) < nodes / 2
    assert pooled_rate(found) == pytest.approx(0.3, rel=0.05)


def test_what_is_fitted_and_made_again_has_the_same_rates() -> None:
    for seed in range(3):
        recorded = synthesise(SPANNING, seed=seed, hours=48.0)
        wanted, market = stats(recorded), fit(recorded)
        assert market.nodes == 30
        assert [zone.name for zone in market.zones] == ["a", "b", "c"]
        again = many(market, seeds=25)
        assert pooled_rate(again) == pytest.approx(wanted.preemptions_per_node_hour, rel=0.04)
        assert mean_nodes(again) == pytest.approx(wanted.mean_nodes, rel=0.03)
        bulk_mean = sum(one.preemptions for one in again) / sum(one.instants for one in again)
        assert bulk_mean == pytest.approx(wanted.bulk_mean, rel=0.05)


def test_a_trace_without_zones_is_fitted_as_one() -> None:
    market = fit(trace((0, "+a"), (0, "+b"), (600, "-a"), (1200, "+c"), (2400, "-b"), (2400, "-c")))
    assert [(zone.name, zone.nodes) for zone in market.zones] == [("", 2)]
    assert market.bulk == ((1, 0.5), (2, 0.5))
    # One of two is missing for 600 of 2400 s, and three were lost.
    assert market.back_s == pytest.approx(600 / 3)
    calm = fit(trace((0, "+a"), (60, "+b")))
    assert (calm.nodes, calm.preemptions_per_node_hour) == (2, 0.0)
    with pytest.raises(InputError, match="test: never has a node; take another trace"):
        fit(Trace(source="test", events=(), length_s=60.0))


def test_the_same_seed_is_the_same_trace_and_another_is_not() -> None:
    again = synthesise(SPANNING, seed=7, hours=24.0)
    assert synthesise(SPANNING, seed=7, hours=24.0) == again
    assert synthesise(SPANNING, seed=8, hours=24.0).events != again.events
    assert again.length_s == 24 * 3600


@st.composite
def markets(draw: st.DrawFn) -> Market:
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3).filter(any))
    back_s = draw(st.sampled_from([0.0, 30.0, 1800.0]))
    return Market(
        zones=tuple(ZoneNodes(name="abc"[i], nodes=nodes) for i, nodes in enumerate(sizes)),
        preemptions_per_node_hour=draw(st.sampled_from([0.0, 0.1, 3.0, 50.0])),
        bulk=draw(st.sampled_from([((1, 1.0),), P3_BULK, ((20, 1.0),)])),
        spans=draw(st.sampled_from([0.0, 0.5, 1.0])),
        back_s=back_s,
        soonest_back_s=min(60.0, back_s),
    )


@given(market=markets(), seed=st.integers(0, 1000))
def test_any_market_is_a_trace_within_what_is_wanted(market: Market, seed: int) -> None:
    made = synthesise(market, seed=seed, hours=3.0)
    # Reading it back holds it against all the rules of a trace.
    assert parse_trace(write_events(made), Path(made.source)) == made
    assert max(level.alive for level in series(made)) <= market.nodes
    for zone in market.zones:
        of_zone = tuple(event for event in made.events if event.zone == zone.name)
        there = series(Trace(source="", events=of_zone, length_s=made.length_s))
        assert max(level.alive for level in there) <= zone.nodes
        assert there[0].alive == zone.nodes


def test_nobody_is_back_sooner_than_can_be() -> None:
    made = synthesise(SPANNING, seed=1, hours=24.0)
    first_loss_s = next(event.at_s for event in made.events if not event.comes)
    first_back_s = next(event.at_s for event in made.events if event.comes and event.at_s > 0)
    assert first_back_s >= first_loss_s + 60.0


def test_the_first_nodes_are_spread_over_the_zones() -> None:
    made = synthesise(SPANNING, seed=1, hours=1.0)
    assert [event.zone for event in made.events[:4]] == ["a", "b", "c", "a"]
    assert [zone.nodes for zone in spread(8, ("a", "b", "c"))] == [3, 3, 2]


@pytest.mark.parametrize(("mean", "most"), [(1, 1), (1, 9), (1.5, 9), (5, 9), (8.9, 9), (9, 9)])
def test_bulks_have_the_mean_asked_for(mean: float, most: int) -> None:
    bulk = geometric(mean, most=most)
    assert sum(size * probability for size, probability in bulk) == pytest.approx(mean, abs=1e-6)
    assert sum(probability for _, probability in bulk) == pytest.approx(1.0)
    assert {size for size, _ in bulk} <= set(range(1, most + 1))


def test_what_makes_no_market_is_refused() -> None:
    good = {"zones": spread(4, ("a",)), "preemptions_per_node_hour": 0.1}
    for wrong in (
        {"zones": ()},
        {"zones": spread(0, ("a",))},
        {"preemptions_per_node_hour": -0.1},
        {"preemptions_per_node_hour": float("nan")},
        {"bulk": ()},
        {"bulk": ((0, 1.0),)},
        {"bulk": ((1, 0.5),)},
        {"bulk": ((2, 0.5), (1, 0.5))},
        {"spans": 1.5},
        {"back_s": 30.0},
    ):
        with pytest.raises(ValueError):
            Market(**{**good, **wrong})  # type: ignore[arg-type]
    for mean, most in ((0.5, 4), (5, 4), (float("nan"), 4)):
        with pytest.raises(ValueError, match="takes"):
            geometric(mean, most=most)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("nodes", [1, 16, 48])
def test_presets_have_their_hazard(name: str, nodes: int) -> None:
    found = many(preset(name, nodes=nodes), hours=200.0, seeds=10)
    wanted = PRESETS[name].preemptions_per_node_hour
    counted = sum(one.preemptions for one in found)
    # Within four deviations of what so many instants, of so many nodes each, come to.
    instants = max(1, sum(one.instants for one in found))
    allowed = 4 * counted / instants**0.5 / sum(one.node_hours for one in found)
    assert pooled_rate(found) == pytest.approx(wanted, abs=max(allowed, 0.001))


def test_a_storm_takes_half_of_a_zone_and_often_all() -> None:
    bulk = preset("storm", nodes=16).bulk
    assert sum(size * probability for size, probability in bulk) == pytest.approx(9.0, abs=0.01)
    assert 0.29 < dict(bulk)[16] < 0.32
    # By zone: where 32 nodes lie in two, an instant takes what it takes of 16.
    assert preset("storm", nodes=32, zones=("a", "b")).bulk == bulk


def test_a_day_of_48_nodes_is_made_in_no_time() -> None:
    market = hazard_market(
        nodes=48, preemptions_per_node_hour=0.1, bulk=2.0, zones=("a", "b", "c", "d"), spans=0.05
    )
    took_s = []
    for seed in range(20):
        begin_s = time.process_time()
        synthesise(market, seed=seed, hours=24.0)
        took_s.append(time.process_time() - begin_s)
    assert min(took_s) < 0.005
