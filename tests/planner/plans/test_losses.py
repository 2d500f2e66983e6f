"""What losses cost: near a measured hit step, nothing where nothing is lost, more where more is."""

from dataclasses import replace

import pytest

from bamboo.planner.plans.losses import NO_LOSSES, PAUSE_S, Hazard, LossBook, Losses
from bamboo.planner.risks.hazards import LOSSES_PER_NODE_HOUR, said
from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.market.synth import hazard_market, synthesise
from bamboo.sim.run import simulate
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.strategy import REDUNDANCY_MODES
from benchmarks.waterfall import asked
from testbed.published_profile import bert_large
from tests.planner.workloads import stakes, workload

GRID = Grid(pipelines=2, stages=4)


def losses(mode: str, hazard: Hazard, *, grid: Grid = GRID, spread: str = "one") -> Losses:
    work = workload(layers=4)
    book = LossBook(hazard=hazard, spread=spread, standbys=0)
    return book.of(work, StepTimes(work, mode), grid, mode)


def test_a_hit_step_takes_about_as_much_longer_as_it_was_measured_to() -> None:
    """On four stages of 20 + 40 ms and 8 microbatches: 464 ms on average, without a pause."""
    work = workload(layers=4, virtual_nodes=1, microbatches=8)
    book = LossBook(hazard=Hazard(stakes=stakes(), replace_s=0.0), spread="one", standbys=0)
    found = book.of(work, StepTimes(work, "stash"), Grid(pipelines=1, stages=4), "stash")
    assert found.survived_s - PAUSE_S == pytest.approx(0.464, rel=0.15)


def test_what_is_computed_ahead_is_not_done_again() -> None:
    hazard = Hazard(stakes=stakes(), replace_s=0.0)
    stash, eager, full = (losses(mode, hazard).survived_s for mode in ("stash", "eager", "full"))
    assert full < eager < stash


@pytest.mark.parametrize("mode", REDUNDANCY_MODES)
def test_on_demand_loses_nothing_and_twice_the_hazard_twice_as_much(mode: str) -> None:
    fixed = losses(mode, Hazard(stakes=stakes(preemptible=False)))
    assert fixed == replace(NO_LOSSES, checkpoint_every=100)
    assert losses(mode, Hazard(stakes=stakes(), rate=said(0.0))) == fixed
    once = losses(mode, Hazard(stakes=stakes()))
    twice = losses(mode, Hazard(stakes=stakes(), rate=said(2 * LOSSES_PER_NODE_HOUR)))
    assert twice.fatal_share == pytest.approx(2 * once.fatal_share)
    assert twice.survived_per_hour == pytest.approx(2 * once.survived_per_hour)
    assert once.survived_share <= twice.survived_share <= 2 * once.survived_share * 1.01
    assert twice.share > once.share == once.survived_share + once.fatal_share > 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("hazard", "back_s"), [(0.1, 75.0), (0.3, 75.0), (0.1, 600.0)])
def test_the_simulator_loses_about_as_much(hazard: float, back_s: float) -> None:
    """BERT-large on 4 x 12 nodes of one zone, two nodes an instant, by the losses that it had."""
    work, grid, hours = bert_large(), Grid(pipelines=4, stages=12), 6.0
    market = hazard_market(nodes=48, preemptions_per_node_hour=hazard, bulk=2.114, back_s=back_s)
    trace = synthesise(market, seed=1, hours=hours)
    played = simulate(asked(work, trace, least=6), trace, keep_moments=False)
    happened = Hazard(
        stakes=stakes(),
        rate=said(played.preemptions / (48 * hours)),
        replace_s=back_s,
    )
    times = StepTimes(work, "stash")
    expected = LossBook(hazard=happened, spread="one", standbys=0).of(work, times, grid, "stash")
    calm = work.batch / times.calm_s(grid, equal_shares(work.shape.virtual_nodes, 4))
    assert calm / (1 + expected.share) == pytest.approx(played.samples_per_s, rel=0.05)
    assert played.samples_per_s < calm


def test_off_survives_nothing_and_replicas_most() -> None:
    hazard = Hazard(stakes=stakes())
    off, peer, stash = (losses(mode, hazard) for mode in ("off", "peer", "stash"))
    assert off.survived_per_hour == 0.0
    assert off.fatal_per_hour > peer.fatal_per_hour > stash.fatal_per_hour > 0
    assert stash.survived_per_hour > peer.survived_per_hour > 0


def test_neighbours_in_different_zones_lose_less() -> None:
    hazard = Hazard(stakes=stakes())
    apart = losses("stash", hazard, spread="neighbours")
    assert apart.fatal_per_hour < losses("stash", hazard).fatal_per_hour


def test_a_late_replacement_and_rare_checkpoints_cost_more() -> None:
    soon = Hazard(stakes=stakes(), replace_s=10.0)
    late = replace(soon, replace_s=300.0)
    assert losses("stash", late).survived_share > 3 * losses("stash", soon).survived_share
    assert losses("off", late).fatal_s == losses("off", soon).fatal_s + 225.0
    rare = Hazard(stakes=stakes(checkpoint_every=1000))
    assert losses("off", rare).fatal_s > losses("off", Hazard(stakes=stakes())).fatal_s
