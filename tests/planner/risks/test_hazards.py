"""Rates of losses: bands by their ratio, own runs by their weight, zones apart, all named."""

from dataclasses import replace
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.config.catalogue import installed_catalogue, load_bands
from bamboo.planner.plans.losses import Hazard, LossBook
from bamboo.planner.risks.hazards import (
    LOSSES_PER_NODE_HOUR,
    MIDDLES,
    PRIOR_H,
    PUBLISHED,
    Bands,
    Lived,
    LossRate,
    OwnRuns,
    learned,
    loss_rate,
    parse_bands,
    said,
)
from bamboo.planner.risks.zones import fatal_per_hour, laid_out
from bamboo.planner.step.step_time import StepTimes
from bamboo.topology.grid import Grid
from tests.planner.workloads import stakes, workload

REGION = "us-east-1"
BANDS = Bands(
    seen="2025-06-28",
    source="S",
    by_region={REGION: {band: band for band in MIDDLES} | {"p3.2xlarge": "> 20 %"}},
)
PRIOR = said(0.3)
HOURS = st.floats(min_value=0.01, max_value=1e5)
LOSSES = st.integers(min_value=0, max_value=1000)


def own(hours: float, losses: int, zone: str = "a") -> OwnRuns:
    return OwnRuns(runs=1, by_zone={zone: Lived(hours=hours, losses=losses)})


def test_a_higher_band_has_a_higher_rate_and_the_trace_s_own_has_the_trace_s() -> None:
    rates = [BANDS.rate(band, REGION).per_node_hour for band in MIDDLES]
    assert rates == sorted(rates)
    assert rates[-1] == LOSSES_PER_NODE_HOUR
    factors = [round(rate / LOSSES_PER_NODE_HOUR, 2) for rate in rates]
    assert factors == [0.10, 0.31, 0.52, 0.75, 1.0]
    # The level that a closed band says is another thing altogether.
    levels = [-log(1 - middle) / 730 for band, middle in MIDDLES.items() if band[0] != ">"]
    assert LOSSES_PER_NODE_HOUR / levels[-1] > 2000
    assert 0.00003 < levels[0] < levels[-1] < 0.00027


def test_what_a_rate_is_from_is_said() -> None:
    band = BANDS.rate("5-10 %", REGION)
    assert band.words == (
        "0.187 per node-hour, modelled by what is interrupted within a month: 5-10 % of 5-10 % in "
        "us-east-1 and > 20 % of p3.2xlarge, which lost 0.611 in Bamboo's trace (S, 2025-06-28)"
    )
    elsewhere = BANDS.rate("5-10 %", "eu-west-9")
    assert elsewhere.per_node_hour == band.per_node_hour
    assert "in us-east-1, as eu-west-9 has none, and" in elsewhere.source
    nobody = BANDS.rate("p9.large", REGION)
    assert nobody.per_node_hour == LOSSES_PER_NODE_HOUR
    assert "as no band of p9.large is published" in nobody.source
    assert said(0.2).source == "as --hazard says"


def test_the_installed_bands_are_of_the_types_of_the_catalogue() -> None:
    types, bands = installed_catalogue().types, load_bands()
    here = bands.by_region[REGION]
    assert types.keys() - here.keys() == {"p5.4xlarge"}
    assert {name for kinds in bands.by_region.values() for name in kinds} <= types.keys()
    assert (here["g4dn.xlarge"], here["p5.48xlarge"]) == ("15-20 %", "> 20 %")
    assert bands.by_region["us-west-2"]["p5.48xlarge"] == "5-10 %"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("schema_version = 2", "schema_version 1"),
        ('schema_version = 1\n[regions.x]\n"20 %" = ["a"]', "'20 %' is none of"),
        ('schema_version = 1\n[regions.x]\n"< 5 %" = ["a"]\n"> 20 %" = ["a"]', "in two bands"),
        ("schema_version = 1\n[regions.x]", "held against"),
    ],
)
def test_damaged_bands_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_bands(text)


@given(hours=HOURS, losses=LOSSES)
def test_own_runs_pull_the_prior_to_what_they_saw(hours: float, losses: int) -> None:
    rate = learned(PRIOR, own(hours, losses), kind="t").per_node_hour
    low, high = sorted((PRIOR.per_node_hour, losses / hours))
    assert low * (1 - 1e-9) <= rate <= high * (1 + 1e-9)
    # Ten times as much of the same pulls further.
    more = learned(PRIOR, own(10 * hours, 10 * losses), kind="t").per_node_hour
    assert abs(more - losses / hours) <= abs(rate - losses / hours) * (1 + 1e-9)


def test_own_runs_weigh_as_much_as_their_hours() -> None:
    rate = learned(PRIOR, own(PRIOR_H, 9), kind="t")
    assert rate.per_node_hour == pytest.approx((0.3 + 0.9) / 2)
    assert rate.source == (
        "by your own runs: 9 losses in 10 instance-hours of t in 1 run, after 10 h at 0.3, as "
        "--hazard says"
    )
    assert learned(PRIOR, own(0.0, 0), kind="t") is PRIOR


def test_a_zone_has_its_own_rate_and_one_that_nobody_was_in_that_of_the_type() -> None:
    two = own(100.0, 0, "a") + own(100.0, 50, "b") + own(50.0, 25, "b")
    assert two.runs == 3
    assert two.lived == Lived(hours=250.0, losses=75)
    rate = learned(PRIOR, two, kind="t")
    assert rate.of("a") < rate.per_node_hour == rate.of("c") < rate.of("b")
    assert f"({rate.of('a'):.3g} in a, {rate.of('b'):.3g} in b)" in rate.source
    assert rate.mean({"a": 1, "b": 3}) == pytest.approx((rate.of("a") + 3 * rate.of("b")) / 4)
    assert rate.mean({}) == rate.per_node_hour


def test_the_command_line_is_before_own_runs_and_those_are_before_the_band() -> None:
    asked, lived = said(0.0), own(1000.0, 20)
    assert loss_rate("5-10 %", REGION, bands=BANDS, own=lived, asked=asked) is asked
    assert loss_rate("5-10 %", REGION, bands=BANDS, own=lived).per_node_hour < 0.03
    assert loss_rate("5-10 %", REGION, bands=BANDS) == BANDS.rate("5-10 %", REGION)


@given(
    rates=st.tuples(*[st.floats(min_value=1e-3, max_value=10.0)] * 2),
    spread=st.sampled_from(["one", "pipelines", "neighbours"]),
    mode=st.sampled_from(["off", "peer", "stash"]),
)
def test_fatal_losses_are_those_of_all_zones_together(
    rates: tuple[float, float], spread: str, mode: str
) -> None:
    grid = Grid(pipelines=2, stages=4)
    zones = {"a": 8} if spread == "one" else {"a": 4, "b": 4}
    placed, zone_of = laid_out(spread, zones, grid, mode)

    def fatal(a: float, b: float) -> float:
        rate = LossRate(per_node_hour=1.0, by_zone={"a": a, "b": b})
        return fatal_per_hour(placed, zone_of, mode, rate)

    both = fatal(*rates)
    assert both == pytest.approx(fatal(rates[0], 0.0) + fatal(0.0, rates[1]))
    assert fatal(1.0, 1.0) == pytest.approx(fatal_per_hour(placed, zone_of, mode, said(1.0)))


def test_a_book_of_losses_has_the_rates_of_its_zones() -> None:
    """Neighbours in two zones: without copies every loss is fatal, with them each is survived."""
    work, grid = workload(layers=4), Grid(pipelines=2, stages=4)
    alike = Hazard(stakes=stakes(), rate=said(0.3))
    zone, other = alike.stakes.zones_by_price()[:2]
    rate = LossRate(per_node_hour=0.5, by_zone={zone: 0.1, other: 0.5})
    apart = replace(alike, rate=rate)
    for mode in ("off", "stash"):
        times = StepTimes(work, mode)
        one, mixed = (
            LossBook(hazard=hazard, spread="neighbours", standbys=0).of(work, times, grid, mode)
            for hazard in (alike, apart)
        )
        assert mixed.fatal_per_hour == pytest.approx(one.fatal_per_hour)
        assert mixed.survived_per_hour == pytest.approx(one.survived_per_hour)
    there = LossBook(hazard=apart, spread="one", standbys=0).fatal_per_hour(grid, "off")
    fewer = replace(alike, rate=said(0.1))
    assert there == pytest.approx(
        LossBook(hazard=fewer, spread="one", standbys=0).fatal_per_hour(grid, "off")
    )


def test_the_rate_of_the_trace_is_what_is_taken_without_any_other() -> None:
    assert PUBLISHED.at_trace() is PUBLISHED
    rate = LossRate(per_node_hour=0.2, by_zone={"a": 0.1}).at_trace()
    assert rate.per_node_hour == LOSSES_PER_NODE_HOUR
    assert rate.of("a") == pytest.approx(LOSSES_PER_NODE_HOUR / 2)
