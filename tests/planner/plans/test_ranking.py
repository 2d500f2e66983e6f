"""Plans by value: the order is exact however few are asked for, the figures are those of the rooms
that define them, and every sentence says what makes the difference."""

from dataclasses import replace
from itertools import pairwise

import pytest

from bamboo.errors import InputError
from bamboo.planner.plans.candidates import JobFitsNowhere, Room
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.ranking import Candidate, Played, against, ranked
from bamboo.planner.risks.hazards import said
from bamboo.planner.step.step_time import StepTimes
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.value import samples_per_s, samples_per_usd
from tests.planner.workloads import stakes, workload

ROOM = Room(memory_bytes=2**40, nodes=range(2, 7))
CALM = Hazard(stakes=stakes(preemptible=False))
STORMY = Hazard(stakes=stakes())


def only(found: tuple[Candidate, ...], grid: Grid, mode: str) -> Candidate:
    (one,) = [c for c in found if (c.choice.grid, c.choice.mode) == (grid, mode)]
    return one


@pytest.mark.timeout(120)
@pytest.mark.parametrize("hazard", [CALM, STORMY])
def test_the_best_are_the_same_however_many_are_asked_for(hazard: Hazard) -> None:
    work = workload(layers=5, bytes_per_s=1e5)
    everything = ranked(work, ROOM, hazard)
    values = [one.value for one in everything]
    assert all(a >= b * (1 - 1e-8) for a, b in pairwise(values))
    for most in (1, 4):
        few = ranked(work, ROOM, hazard, most=most)
        assert few == everything[:most]


def test_what_was_played_for_one_ranking_is_not_played_again_for_the_next() -> None:
    work, played = workload(bytes_per_s=1e5), Played()
    roomy = replace(ROOM, memory_bytes=2**41, grids=(Grid(pipelines=1, stages=4),))
    first = ranked(work, roomy, STORMY, played=played)
    before = sum(len(runs.step_s) for runs in played.values())
    assert before > 0
    again = ranked(work, replace(roomy, memory_bytes=2**40), STORMY, played=played)
    assert sum(len(runs.step_s) for runs in played.values()) == before
    assert again == first == ranked(work, roomy, STORMY)


def test_figures_are_those_of_the_rooms_that_define_them() -> None:
    work = workload(bytes_per_s=1e6)
    room = replace(ROOM, microbatches=(2,), modes=("off", "stash", "full"))
    grid = Grid(pipelines=1, stages=4)
    found = ranked(work, room, CALM)
    off, full = only(found, grid, "off"), only(found, grid, "full")
    shares = equal_shares(2, 1)
    bare_s = StepTimes(work, "off").calm_s(grid, shares)
    full_s = StepTimes(work, "full").calm_s(grid, shares)
    assert (off.step_s, full.step_s) == (bare_s, full_s)
    assert full.redundancy_overhead == pytest.approx(full_s / bare_s - 1)
    assert off.redundancy_overhead == off.overhead == 0.0
    assert off.usd_per_hour == pytest.approx(4 * 0.5)
    assert off.value == samples_per_usd(samples_per_s(work.batch, bare_s), off.usd_per_hour)
    assert off.busy == pytest.approx(8 * sum(work.both_s) / (4 * bare_s))
    # The middle stages send eight outputs and eight gradients of 128 bytes.
    assert off.sent_bytes == 8 * 2 * 128
    shipped = 4 * sum(layer.parameters for layer in work.layers[4:6])
    assert only(found, grid, "stash").sent_bytes == 8 * 2 * 128 + shipped
    assert off.wire_share == pytest.approx(off.sent_bytes / 1e6 / bare_s)


def test_a_node_sends_no_more_than_its_rate_allows() -> None:
    work = workload(bytes_per_s=1e6)
    room = replace(ROOM, microbatches=(2,), modes=("off",), nodes=range(4, 5))
    (free,) = [c for c in ranked(work, room, CALM) if c.choice.grid.stages == 4]
    slow = replace(work, node_bytes_per_s=1000.0)
    (held,) = [c for c in ranked(slow, room, CALM) if c.choice.grid.stages == 4]
    assert free.step_s < held.step_s
    assert held.step_s == pytest.approx(2048 / 1000)
    assert held.wire_share == pytest.approx(1.0)


def test_redundancy_is_chosen_where_it_pays_and_not_where_it_does_not() -> None:
    """The link is slow: shipping a gradient takes longer than a step."""
    work = workload(bytes_per_s=1.3e4, parameters=2000)
    room = Room(memory_bytes=2**40, nodes=range(4, 5), microbatches=(2,), modes=("off", "stash"))
    grid = Grid(pipelines=1, stages=4)
    often = Hazard(stakes=stakes(checkpoint_every=1000))
    rarely = replace(often, rate=said(0.001))
    calm, stormy = ranked(work, room, rarely), ranked(work, room, often)
    assert calm[0].choice.mode == "off"
    assert stormy[0].choice.mode == "stash"
    assert "redundancy makes a step" in only(calm, grid, "stash").why
    assert "restores" in only(stormy, grid, "off").why


def test_every_plan_says_in_a_sentence_why_it_is_not_the_first() -> None:
    work = workload(layers=4, virtual_nodes=1)  # one pipeline, so no plan has one stage
    found = ranked(work, replace(ROOM, microbatches=(2,)), CALM)
    assert found[0].why == f"The most samples per dollar of the {len(found)} plans that fit."
    for one in found[1:]:
        assert found[0].choice.name in one.why
        assert one.why.endswith(".")
        assert one.why.count(". ") == 0
    stash = only(found, found[0].choice.grid, "stash")
    assert stash.why.startswith("Worth as much as")
    assert stash.why.endswith("and it has more redundancy (stash).")


def test_a_spread_that_is_not_allowed_leaves_out_the_plan_and_bytes_between_zones_cost() -> None:
    work = workload(layers=4, bytes_per_s=1e6)
    room = replace(ROOM, microbatches=(2,), modes=("off",), nodes=range(4, 5))
    one = ranked(work, room, CALM)
    apart = ranked(work, room, CALM, spread="pipelines")
    assert {c.choice.grid.pipelines for c in one} == {1, 2}
    assert {c.choice.grid.pipelines for c in apart} == {2}
    # Two nodes in each zone, and what is exchanged between them.
    assert apart[0].usd_per_hour > 2 * 0.5 + 2 * 0.6
    waiting = ranked(work, room, CALM, standbys=1)
    assert waiting[0].nodes == 5
    assert waiting[0].usd_per_hour == pytest.approx(5 * 0.5)


def test_with_spread_auto_each_plan_lies_as_it_is_worth_most() -> None:
    """Over three layouts of the zones, whatever is asked for."""
    work = workload(layers=4, bytes_per_s=1e6)
    room = replace(ROOM, microbatches=(2,), modes=("off", "stash", "peer"))
    alike = replace(stakes(), zone_usd_per_hour={"a": 0.5, "b": 0.5})
    hazard = Hazard(stakes=alike)
    best: dict[tuple[Grid, str], Candidate] = {}
    for spread in ("one", "pipelines", "neighbours"):
        for one in ranked(work, room, hazard, spread=spread):
            key = (one.choice.grid, one.choice.mode)
            if key not in best or one.value > best[key].value * (1 + 1e-8):
                best[key] = one
    found = ranked(work, room, hazard, spread="auto")
    assert len(found) == len(best)
    assert len({one.spread for one in found}) > 1
    for one in found:
        there = best[one.choice.grid, one.choice.mode]
        assert one.value == pytest.approx(there.value)
        assert one.spread == there.spread
    assert ranked(work, room, hazard, spread="auto", most=3) == found[:3]


def test_a_plan_that_is_not_the_best_says_what_would_be_better() -> None:
    work = workload(layers=4, virtual_nodes=1)  # one pipeline, so no plan has one stage
    found = ranked(work, replace(ROOM, microbatches=(2,)), CALM)
    best, worst = found[0], found[-1]
    why = against(worst, best)
    assert f" more samples per dollar than {worst.choice.name}, where " in why
    assert why.endswith(".")
    assert against(best, worst) == worst.why
    more = float(why.split(" %")[0])
    assert more == pytest.approx(100 * (best.value / worst.value - 1), rel=0.01)


def test_a_room_may_name_its_grids() -> None:
    grid = Grid(pipelines=2, stages=2)
    found = ranked(workload(), replace(ROOM, grids=(grid,)), CALM)
    assert {one.choice.grid for one in found} == {grid}


def test_where_nothing_fits_the_ranking_is_refused() -> None:
    with pytest.raises(JobFitsNowhere, match="does not fit"):
        ranked(workload(), replace(ROOM, memory_bytes=1000), CALM)


def test_a_spread_that_allows_nothing_is_refused() -> None:
    priceless = Hazard(stakes=replace(stakes(), zone_usd_per_hour={}))
    with pytest.raises(InputError, match="over 0 zones with a price"):
        ranked(workload(), ROOM, priceless)
    single = replace(ROOM, nodes=range(3, 4))
    with pytest.raises(InputError, match="can be spread as 'pipelines'"):
        ranked(workload(), single, CALM, spread="pipelines")
