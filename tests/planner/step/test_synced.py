"""A plan sees how gradients are synchronised: bytes, step, memory and dollars between zones."""

import random
from dataclasses import replace

import pytest

from bamboo.ids import NodeId, ZoneId
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.cost import costs_for, expected
from bamboo.planner.step.step_time import StepTimes
from bamboo.planner.step.synced import parameters_of
from bamboo.planner.sync.price import can_hide, price
from bamboo.planner.sync.situation import Syncing
from bamboo.planner.sync.worth import LEAST, may_win
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.sync import BUILDERS, Sync, SyncRule
from tests.planner.workloads import workload

GRID, SHARES = Grid(pipelines=2, stages=2), (1, 1)
WIDTH, ROWS = 1000, 4


def wide(sync: Sync | str, *, pipelines: int = 2, gbps: float = 0.1) -> WorkloadFigures:
    """Eight layers with a weight of 4 MB each, four rows in a microbatch."""
    work = workload(parameters=0, virtual_nodes=pipelines, bytes_per_s=gbps * 125e6)
    layers = tuple(
        replace(
            layer,
            parameters=WIDTH * WIDTH,
            synced=(
                ParameterFacts(
                    name=f"{index}.weight", shape=(WIDTH, WIDTH), layer=index, rows_k=ROWS
                ),
            ),
        )
        for index, layer in enumerate(work.layers)
    )
    return replace(work, layers=layers, syncing=Syncing(sync=sync, flops_per_s=1e10))


FACTORS = Sync(rules=(SyncRule(match="*", exchange="factors", ship="factors"),))


@pytest.mark.parametrize("pipelines", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["off", "stash"])
def test_without_rules_all_figures_are_as_without_a_strategy(pipelines: int, mode: str) -> None:
    grid, shares = Grid(pipelines=pipelines, stages=2), (1,) * pipelines
    found = []
    for sync in (Sync(), Sync(rules=(SyncRule(match="*"),))):
        work = wide(sync, pipelines=pipelines)
        rates = {"added_per_s": 1e9, "written_per_s": 1e9, "copied_bytes_per_s": 2e9}
        syncing = replace(work.syncing, **rates)
        found.append(StepTimes(replace(work, syncing=syncing), mode))
    plain, tree = found
    assert tree.sent_bytes(grid, shares) == pytest.approx(plain.sent_bytes(grid, shares))
    ours, theirs = (one.synced(grid, shares) for one in found)
    assert mode == "off" or ours.ship_bytes == pytest.approx(theirs.ship_bytes)
    assert ours.work_s == pytest.approx(theirs.work_s)
    assert tree.calm_s(grid, shares) == pytest.approx(plain.calm_s(grid, shares))
    assert plain.held_factors(grid) == ()


def test_an_owner_copies_what_it_ships_before_its_step() -> None:
    alone, copied = Grid(pipelines=1, stages=2), 1e9
    found = {}
    for sync in (Sync(), FACTORS):
        work = wide(sync, pipelines=1, gbps=10)
        there = replace(work, syncing=replace(work.syncing, copied_bytes_per_s=copied))
        for mode in ("off", "stash"):
            without, with_it = (StepTimes(one, mode) for one in (work, there))
            shipped = without.synced(alone, (1,)).ship_bytes[0]
            found[sync, mode] = with_it.calm_s(alone, (1,)) - without.calm_s(alone, (1,))
            if mode == "stash":
                assert found[sync, mode] == pytest.approx(shipped / copied, rel=0.01)
                times = with_it.resolved(alone, (1,))
                calm_s = with_it.calm_s(alone, (1,))
                assert price(times).step_s == pytest.approx(calm_s, rel=0.1)
    assert found[Sync(), "stash"] > 5 * found[FACTORS, "stash"]
    assert found[Sync(), "off"] == found[FACTORS, "off"] == 0


def test_factors_are_fewer_bytes_a_shorter_step_and_memory() -> None:
    dense, few = (StepTimes(wide(sync), "stash") for sync in ("tree", FACTORS))
    each = 4 * 4 * ROWS * 2 * WIDTH  # of a weight and pipeline: four microbatches
    gradient = 4 * 4 * WIDTH * WIDTH
    edges = 4 * 128
    assert dense.sent_bytes(GRID, SHARES)[0] == gradient * 2 + edges
    assert few.sent_bytes(GRID, SHARES)[0] == 4 * (each + 2 * each) + edges
    assert few.calm_s(GRID, SHARES) < 0.6 * dense.calm_s(GRID, SHARES)
    assert few.held_factors(GRID) == (4 * each * (3 + 2 * 2 + 2),) * 2
    # Products take time: of the other pipeline's rows, and for the shadow of all.
    slow = replace(wide(FACTORS), syncing=Syncing(sync=FACTORS, flops_per_s=1e9))
    of_others_s = 4 * 2 * 4 * ROWS * WIDTH**2 / 1e9
    cost = costs_for(slow, GRID)
    assert cost.exchange_s == pytest.approx((of_others_s,) * 2)
    assert cost.rebuild_s == pytest.approx((2 * of_others_s,) * 2)
    assert expected(slow, GRID, "stash").step_s > few.calm_s(GRID, SHARES)


def test_a_cpu_writes_products_of_few_rows_and_whole_gradients() -> None:
    rates = {"flops_per_s": 1e10, "added_per_s": 1e9, "written_per_s": 1e9}
    dense, few = (
        replace(work, syncing=replace(work.syncing, **rates))
        for work in (wide("tree"), wide(FACTORS))
    )
    whole_s = 4 * WIDTH**2 / 1e9
    assert costs_for(dense, GRID).exchange_s == pytest.approx((1.5 * whole_s,) * 2)
    # Five rows take as long as to write the result, and there are only four.
    products_s, added_s = 4 * whole_s, (4 + 1) * whole_s
    assert costs_for(few, GRID).exchange_s == pytest.approx((products_s + added_s + whole_s,) * 2)
    alone = Grid(pipelines=1, stages=2)
    assert costs_for(dense, alone).exchange_s == (0.0, 0.0)
    # The search's price counts the same.
    times = StepTimes(few, "off")
    calm_s = times.calm_s(GRID, SHARES)
    assert price(times.resolved(GRID, SHARES)).step_s == pytest.approx(calm_s, rel=0.01)


def test_early_buckets_shorten_the_step_by_what_can_hide() -> None:
    late, early = (StepTimes(wide(Sync(bucket=x), gbps=1), "off") for x in (10**9, 0))
    late_s, early_s = (times.calm_s(GRID, SHARES) for times in (late, early))
    hidden = can_hide(early.resolved(GRID, SHARES))
    exchange_s = late.synced(GRID, SHARES).peers_s[0]
    assert 0 < hidden < 1
    assert late_s - early_s == pytest.approx(hidden * exchange_s, rel=0.01)


@pytest.mark.parametrize("gbps", [0.05, 1.0])
@pytest.mark.parametrize("sync", ["tree", "factors-hybrid", "auto", Sync(bucket=0)])
def test_a_search_prices_a_step_as_its_dry_run_does(sync: Sync | str, gbps: float) -> None:
    for pipelines, stages in ((1, 2), (2, 4), (4, 2)):
        grid, shares = Grid(pipelines=pipelines, stages=stages), (1,) * pipelines
        times = StepTimes(wide(sync, pipelines=pipelines, gbps=gbps), "stash")
        priced = price(times.resolved(grid, shares))
        assert priced.step_s == pytest.approx(times.calm_s(grid, shares), rel=0.1)


def test_dollars_between_zones_follow_zoned() -> None:
    grid, shares = Grid(pipelines=4, stages=1), (1, 1, 1, 1)
    rules = Sync(rules=(SyncRule(match="*", exchange="zoned"),), zones=(0, 0, 1, 1))
    found = []
    for sync in ("tree", rules, "auto"):
        work = wide(sync, pipelines=4, gbps=1.0)
        # At $0.02 a GB and $3.60 an hour for all nodes; by factors it would be fewer bytes still.
        layers = tuple(
            replace(layer, synced=tuple(replace(one, rows_k=0) for one in layer.synced))
            for layer in work.layers
        )
        billed = replace(work.syncing, billed_s_per_byte=20e-9)
        times = StepTimes(replace(work, layers=layers, syncing=billed), "off")
        zone_of = {NodeId(f"{p}.0"): ZoneId("ab"[p // 2]) for p in range(4)}
        found.append(times.crossing_bytes(times.calm(grid), shares, zone_of))
    half = 8 * 4 * WIDTH**2 * 2
    assert found == pytest.approx([2 * half, half, half])


@pytest.mark.parametrize("seed", range(40))
def test_no_strategy_goes_below_the_bound_by_which_plans_are_passed_over(seed: int) -> None:
    draw = random.Random(seed)
    pipelines = draw.choice((1, 2, 3, 4))
    nodes = draw.choice((4, 6))
    grid, shares = Grid(pipelines=pipelines, stages=2), equal_shares(nodes, pipelines)
    zones = tuple(sorted(draw.choice((0, 1)) for _ in range(pipelines)))
    work = workload(virtual_nodes=nodes, bytes_per_s=draw.choice((0.0, 1e7, 1e8)))
    layers = tuple(
        replace(layer, parameters=one.size, synced=(one,))
        for index, layer in enumerate(work.layers)
        for one in (drawn_facts(index, draw),)
    )
    syncing = Syncing(
        sync="auto",
        zones=zones,
        flops_per_s=1e10,
        billed_s_per_byte=1e-8,
        written_per_s=draw.choice((0.0, 1e8)),
        copied_bytes_per_s=draw.choice((0.0, 1e7, 1e9)),
    )
    rate = draw.choice((0.0, 1e7, 1e8))
    work = replace(work, layers=layers, syncing=syncing, node_bytes_per_s=rate)
    mode = draw.choice(("off", "stash"))
    bound = StepTimes(work, mode)
    zone_of = {NodeId(f"{p}.{s}"): ZoneId(str(zones[p])) for p in range(pipelines) for s in (0, 1)}
    crossing = (bound.calm(grid), shares, zone_of)
    for builder in BUILDERS:
        times = StepTimes(replace(work, syncing=replace(syncing, sync=builder)), mode)
        # Where no more than LEAST is to be won, the bound is what `tree` takes.
        assert bound.bound_s(grid, shares) * (1 - LEAST) <= times.floor_s(grid, shares)
        least = bound.crossing_bytes(*crossing, least=True)
        if may_win(parameters_of(work), bound.situation(grid, shares)):
            assert least <= times.crossing_bytes(*crossing) * 1.000001


def drawn_facts(index: int, draw: random.Random) -> ParameterFacts:
    """A dense weight, a sparse one or a linear one."""
    density = draw.choice((1.0, 0.02))
    return ParameterFacts(
        name=f"{index}.weight",
        shape=(draw.choice((100, 1000)), draw.choice((100, 1000))),
        layer=index,
        rows_k=draw.choice((0, 4, 400)),
        density=density,
        step_density=min(1.0, 3 * density),
    )
