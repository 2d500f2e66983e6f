"""The published simulator: how it averages, its random markets, and its figures."""

import math
import os
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from bamboo.sim.market.trace import read_trace
from benchmarks.published import nsdi23
from benchmarks.published.nsdi23 import MODELS, Published, play, play_random
from benchmarks.published.random_market import PUBLISHED_SEEDS, SLOTS, random_market
from tests.sim.worlds import trace

pytestmark = pytest.mark.timeout(60)
TRACES = Path(os.environ.get("BAMBOO_TRACES", Path(__file__).parents[3] / "shared" / "traces"))

SMALL = Published(stages=2, samples=10, step_s=(10.0, 5.0), reconfiguration_s=20.0)


def test_nodes_are_averaged_to_the_last_step_and_samples_from_the_first() -> None:
    run = play(SMALL, trace("0 +a b c", "100 -b"), hours=0.05)
    # 75 s until the first step; it is slow from the middle of the third on: 15 s a step.
    ends_s = 75 + 2 * 10 + 5 + 5 * 1.5
    last_s = ends_s + (180 - ends_s) // 15 * 15
    assert run.steps == 3 + (180 - ends_s) // 15
    assert run.hours * 3600 == pytest.approx(last_s)
    assert run.mean_nodes == pytest.approx((100 * 3 + (last_s - 100) * 2) / last_s)
    assert run.samples_per_s == pytest.approx(run.steps * 10 / (last_s - 75))
    assert run.usd_per_hour == pytest.approx(0.91 * run.mean_nodes)
    assert run.usd == pytest.approx(run.usd_per_hour * last_s / 3600)
    value = (25 * 1.0 / (3 * 0.91) + (last_s - 100) * (10 / 15) / (2 * 0.91)) / (last_s - 75)
    assert run.value == pytest.approx(value)
    # The queue of the published simulator hands the three out as a, c, b: b waited.
    assert (run.preemptions, run.failovers, run.fatal) == (1, 0, 0)
    points = [(point.at_s, point.nodes, point.step_s) for point in run.timeline]
    assert points == [(0.0, 3, math.inf), (75.0, 3, 10.0), (100.0, 2, 15.0)]


def test_a_node_that_goes_before_it_is_created_is_paid_for_and_never_joins() -> None:
    run = play(SMALL, trace("0 +a b", "100 +c d", "120 -c d"), hours=0.05)
    # 4.5 steps until then, the rest of this one in 7.5 s, and three of 15 s.
    assert (run.preemptions, run.failovers, run.steps) == (2, 0, 8)
    assert run.mean_nodes == pytest.approx(2 + 2 * 20 / (run.hours * 3600))


def test_a_step_that_ends_after_all_nodes_went_is_worth_nothing() -> None:
    run = play(SMALL, trace("0 +a b", "95 -a b"), hours=0.5)
    assert run.preemptions == 2
    assert math.isfinite(run.value)


def test_a_node_that_comes_again_before_it_was_created_joins_once() -> None:
    run = play(SMALL, trace("0 +a b c", "10 -c", "20 +c", "300 -c"), hours=0.2)
    assert run.reconfigurations == run.failovers == 0
    assert {point.step_s for point in run.timeline} == {math.inf, 10.0, 15.0}


def test_a_market_without_a_pipeline_gives_no_figures() -> None:
    run = play(SMALL, trace("0 +a", "100 -a"), hours=0.05)
    assert (run.steps, run.samples_per_s, run.value, run.usd, run.preemptions) == (0, 0, 0, 0, 1)


def test_a_market_that_never_has_a_node_gives_no_figures() -> None:
    run = play(MODELS["bert"], trace())
    assert (run.steps, run.usd, run.value, run.timeline) == (0, 0.0, 0.0, ())


def test_the_timeline_says_what_was_so_until_the_next_point() -> None:
    run = play_random(0.1, 3)
    for now, then in pairwise(run.timeline):
        assert now.at_s < then.at_s
        done = 0.0 if math.isinf(now.step_s) else (then.at_s - now.at_s) / now.step_s
        # A fatal loss takes back the part of a step.
        assert then.steps - now.steps <= done + 1e-6
    assert run.timeline[-1].at_s <= run.hours * 3600


def test_a_seed_decides_everything() -> None:
    assert play_random(0.1, 7) == play_random(0.1, 7)
    assert play_random(0.1, 7) != play_random(0.1, 8)


def test_a_longer_market_begins_like_a_shorter_one() -> None:
    short, long = random_market(0.5, 1, hours=5), random_market(0.5, 1, hours=9)
    assert long.events[: len(short.events)] == short.events
    assert all(event.at_s >= 5 * 3600 for event in long.events[len(short.events) :])


def test_a_random_market_is_a_trace_of_48_slots() -> None:
    market = random_market(0.5, 2, hours=36)
    alive: set[str] = set()
    for event, after in pairwise(market.events):
        assert event.at_s <= after.at_s
        assert event.comes != (event.node in alive)
        alive.symmetric_difference_update({event.node})
        assert len(alive) <= SLOTS
    assert market.length_s == 36 * 3600


def test_a_run_that_needs_longer_sees_more_of_its_market(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = play_random(0.1, 5)
    monkeypatch.setattr(nsdi23, "RANDOM_HOURS", 4.0)
    assert play_random(0.1, 5) == whole


def test_a_market_that_never_lasts_ends_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsdi23, "MOST_RANDOM_HOURS", 36.0)
    run = play_random(1.0, 1)
    assert 0 < run.steps < nsdi23.RANDOM_STEPS
    assert 35 < run.hours < 36


@pytest.mark.parametrize(
    ("hazard", "published"),
    [
        (0.01, (4.41, 0.03, 43.59, 148.19, 39.67, 3.69)),
        (0.10, (54.32, 0.08, 40.42, 131.81, 36.78, 3.55)),
        pytest.param(0.50, (343.95, 2.43, 26.84, 83.18, 24.43, 3.33), marks=pytest.mark.full),
    ],
)
def test_the_random_rows_are_met(hazard: float, published: tuple[float, ...]) -> None:
    preemptions, fatal, nodes, rate, dollars, value = published
    runs = [play_random(hazard, seed) for seed in PUBLISHED_SEEDS]
    assert {run.steps for run in runs} == {22_194}
    assert fmean(run.preemptions for run in runs) == pytest.approx(preemptions, rel=0.005)
    assert fmean(run.fatal for run in runs) == pytest.approx(
        fatal, abs=0.1 if hazard > 0.1 else 0.025
    )
    assert fmean(run.mean_nodes for run in runs) == pytest.approx(nodes, rel=0.005)
    assert fmean(run.samples_per_s for run in runs) == pytest.approx(rate, rel=0.005)
    assert fmean(run.usd_per_hour for run in runs) == pytest.approx(dollars, rel=0.005)
    assert fmean(run.value for run in runs) == pytest.approx(value, rel=0.005)


ON_TRACE = {
    "bert": (6, 0, 0.003, 24.07, 21.90, 11375, 73.73, 3.344),
    "gpt-2": (6, 0, 0.003, 24.07, 21.90, 30143, 23.68, 1.144),
    "resnet-152": (13, 2, 0.025, 23.29, 21.19, 13904, 123.83, 5.562),
}
"""Fatal losses, within how many; within what share: nodes, dollars per hour, steps, samples per
second, value."""


@pytest.mark.parametrize("name", MODELS)
def test_the_recorded_trace(name: str) -> None:
    path = TRACES / "bamboo-p3.csv"
    if not path.exists():
        pytest.skip("the recorded trace bamboo-p3.csv is not at hand")
    run = play(MODELS[name], read_trace(path))
    assert run.preemptions == 167
    assert run.steps > 0
    if name not in ON_TRACE:
        return  # nothing was published: there it crashed on this trace
    fatal, within, share, nodes, dollars, steps, rate, value = ON_TRACE[name]
    assert abs(run.fatal - fatal) <= within
    assert run.mean_nodes == pytest.approx(nodes, rel=0.001)
    assert run.usd_per_hour == pytest.approx(dollars, rel=0.001)
    assert run.steps == pytest.approx(steps, rel=share)
    assert run.samples_per_s == pytest.approx(rate, rel=share)
    assert run.value == pytest.approx(value, rel=share)
