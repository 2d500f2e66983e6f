"""A simulated run that chooses its size: as the pure function would, by the same sentences."""

from dataclasses import replace

import pytest

from bamboo.core.state import GridTime
from bamboo.planner.fleet.autoscale import Scaling, decide, with_times
from bamboo.planner.fleet.fleet_size import Rule, Situation, best_size
from bamboo.planner.fleet.scaler import SETTLING, ScalerTerms
from bamboo.planner.fleet.scaling_curve import LEAST
from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.asked import Asked
from bamboo.sim.market.synth import Market, ZoneNodes
from bamboo.sim.market.trace import Trace
from bamboo.sim.run import simulate, simulate_seeds
from bamboo.sim.sizing import Sizes
from bamboo.study.markets import made
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.virtual_nodes import BatchShape
from tests.sim.worlds import asked, trace

STEPS = 2000
LEAVES = 12
SIZES = (2, 4, 6, 8, 12, 24)
"""Two stages and a pipeline for each further divisor of twelve virtual nodes."""
ALL = "0 +" + " ".join("abcdefghijklmnopqrstuvwx")


def autoscaled(*, begin: int = 1, marginal: float = 0.1, max_usd: float = 0.0) -> Asked:
    """Up to 12 x 2 nodes of one dollar an hour, and `begin` pipelines to begin with."""
    one = asked(stages=2, last_step=STEPS, horizon_s=1e6)
    work = replace(one.workload, shape=BatchShape(virtual_nodes=LEAVES, microbatches=2), batch=48)
    times = StepTimes(work, one.redundancy)
    grids = tuple(
        GridTime(
            pipelines=size // 2,
            stages=2,
            step_s=times.calm_s(grid := Grid(pipelines=size // 2, stages=2), _shares(grid)),
        )
        for size in SIZES
    )
    terms = ScalerTerms(
        rule=Rule(sizes=SIZES, batch=work.batch, marginal=marginal),
        begin=2 * begin,
        max_usd=max_usd,
        pool_out_s=300.0,
    )
    return replace(
        one,
        workload=work,
        policy=replace(one.policy, virtual_nodes=LEAVES, pipelines=LEAVES, grids=grids),
        grid=Grid(pipelines=begin, stages=2),
        sizes=Sizes(terms=terms, steps=STEPS),
    )


def _shares(grid: Grid) -> tuple[int, ...]:
    return equal_shares(LEAVES, grid.pipelines)


def curve(one: Asked) -> dict[int, float]:
    """What a calm step takes at each size, by the dry run."""
    return {grid.size: grid.step_s for grid in one.policy.grids}


def purely(one: Asked) -> list[str]:
    """The sentences of the pure function alone, told of the same curve."""
    assert one.sizes is not None
    rule, step_s, said = one.sizes.terms.rule, curve(one), []
    scaling, step = Scaling(nodes=one.sizes.terms.begin), 0
    for _ in range(20):
        scaling = with_times(scaling, scaling.nodes, [round(step_s[scaling.nodes], 6)] * LEAST)
        step += LEAST + SETTLING
        now = Situation(at_s=0.0, passed_s=0.0, steps_left=STEPS - step, node_usd_per_hour=1.0)
        scaling, resize = decide(scaling, rule, now, step=step)
        said += [resize.reason] if resize is not None else []
    return said


@pytest.mark.parametrize("begin", [1, 3, 12])
@pytest.mark.parametrize("marginal", [0.02, 0.3, 0.5, 0.7, 0.95])
def test_it_comes_to_the_size_that_the_pure_function_chooses(begin: int, marginal: float) -> None:
    one = autoscaled(begin=begin, marginal=marginal)
    assert one.sizes is not None
    found = simulate(one, trace(ALL, length_s=1e6))
    assert [resize.reason for resize in found.resized] == purely(one)
    now = Situation(at_s=0.0, passed_s=0.0, steps_left=STEPS, node_usd_per_hour=1.0)
    best = best_size(one.sizes.terms.rule, curve(one), now)
    assert (found.resized[-1].nodes if found.resized else 2 * begin) == best
    assert (found.steps, found.lost_steps, found.resizes) == (STEPS, 0, len(found.resized))
    # What is kept to the end is what was paid for.
    assert found.mean_nodes == pytest.approx(best, rel=0.2)


def test_it_grows_and_it_shrinks() -> None:
    market = trace(ALL, length_s=1e6)
    large, small = (simulate(autoscaled(begin=3, marginal=m), market) for m in (0.02, 0.95))
    assert (large.resized[-1].nodes, small.resized[-1].nodes) == (24, 2)
    assert large.seconds < small.seconds
    assert large.usd > small.usd


def test_a_wish_without_capacity_is_given_up_and_repeated_when_there_is_some() -> None:
    """Three nodes are there; the rest come after half an hour."""
    few, rest = "0 +a b c", "1800 +" + " ".join("defghijklmnopqrstuvwx")
    found = simulate(autoscaled(marginal=0.02), trace(few, rest, length_s=1e6))
    grown, given_up, *later = found.resized
    assert (grown.before, grown.nodes) == (2, 4)
    assert given_up.reason == "3 of 4 nodes could be had; not asked again for 300 s"
    assert given_up.at_s == pytest.approx(grown.at_s + 300 + 45, abs=5)  # and a node's boot
    assert later[-1].nodes == 24
    assert later[-1].at_s > 1800
    assert found.steps == STEPS


def test_losses_are_replaced_and_are_no_resizes() -> None:
    market = trace(ALL + " y z", "900 -a", "1500 -b", length_s=1e6)
    found = simulate(autoscaled(marginal=0.5), market)
    calm = simulate(autoscaled(marginal=0.5), trace(ALL, length_s=1e6))
    assert [one.reason for one in found.resized] == [one.reason for one in calm.resized]
    assert (found.preemptions, found.steps) == (2, STEPS)


def test_it_never_grows_beyond_the_budget() -> None:
    market = trace(ALL, length_s=1e6)
    free, least = (simulate(autoscaled(begin=3, marginal=m), market).usd for m in (0.02, 0.95))
    limit = (free + least) / 2
    bound = simulate(autoscaled(begin=3, marginal=0.02, max_usd=limit), market)
    assert bound.usd <= limit < free
    assert bound.steps == STEPS


def _market(seed: int) -> Trace:
    market = Market(zones=(ZoneNodes(name="", nodes=24),), preemptions_per_node_hour=0.5)
    return made(market, seed=seed, hours=24.0)


def test_a_seed_gives_the_same_resizes_whoever_plays_it() -> None:
    one = replace(autoscaled(marginal=0.5), horizon_s=86_400.0)
    seeds = range(3)
    alone = [found["bamboo"] for found in simulate_seeds(one, _market, seeds, processes=1)]
    both = [found["bamboo"] for found in simulate_seeds(one, _market, seeds, processes=2)]
    assert alone == both
    assert all(found.resized for found in alone)
    assert len({found.resized for found in alone}) == 3
