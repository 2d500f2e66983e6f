"""Prices of spreads: bytes counted by hand, losses one by one, and what is then cheapest."""

from dataclasses import replace
from itertools import combinations
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo.ids import NodeId
from bamboo.planner.risks import zones as model
from bamboo.planner.risks.checkpoint_cost import Shards
from bamboo.planner.risks.hazards import LOSSES_PER_NODE_HOUR
from bamboo.planner.risks.survival import copies_of_stages
from bamboo.planner.risks.zones import (
    LOSSES_AT_ONCE,
    RESTART_S,
    Spread,
    Stakes,
    cheapest,
    crossing_bytes,
    fatal_per_hour,
    fatal_share,
    laid_out,
    nodes_by_zone,
    price_spreads,
)
from bamboo.planner.step.layout import Costs, layout_of
from bamboo.topology.grid import Grid

DAY_OF_STEPS = 86_400
STAKES = Stakes(
    zone_usd_per_hour={"a": 1.0, "b": 1.1, "c": 1.2}, preemptible=True, steps=DAY_OF_STEPS
)


def costs(
    stages: int, *, boundary: float = 0.0, gradient: float = 0.0, exchange: float = 0.0
) -> Costs:
    return Costs.of(
        stages,
        forward_s=(0.02,),
        backward_s=(0.04,),
        boundary_bytes=(boundary,),
        gradient_bytes=(gradient,),
        exchange_bytes=(exchange,),
    )


def priced(
    grid: Grid,
    *,
    mode: str = "stash",
    boundary: float = 0.0,
    gradient: float = 0.0,
    stakes: Stakes = STAKES,
    standbys: int = 0,
) -> dict[str, Spread]:
    found = price_spreads(
        layout_of(grid, microbatches=[8], mode=mode),
        costs(grid.stages, boundary=boundary, gradient=gradient),
        step_s=1.0,
        nodes=grid.size + standbys,
        stakes=stakes,
        shards=Shards(stage_bytes=(1e9,) * grid.stages, store_bytes_per_s=1e8),
    )
    return {spread.name: spread for spread in found}


def taken(found: dict[str, Spread]) -> str:
    return cheapest(tuple(found.values())).name


def test_how_many_nodes_each_zone_gets() -> None:
    order = ["a", "b", "c"]
    four, five, two = (Grid(pipelines=d, stages=p) for d, p in ((1, 4), (1, 5), (2, 4)))
    assert nodes_by_zone("one", four, order, nodes=5) == {"a": 5}
    assert nodes_by_zone("pipelines", four, order, nodes=5) == {}
    assert nodes_by_zone("pipelines", two, order, nodes=9) == {"a": 5, "b": 4}
    assert nodes_by_zone("neighbours", four, order, nodes=5) == {"a": 3, "b": 2}
    assert nodes_by_zone("neighbours", five, order, nodes=5) == {"a": 2, "b": 2, "c": 1}
    assert nodes_by_zone("neighbours", five, order[:2], nodes=6) == {"a": 4, "b": 2}
    assert nodes_by_zone("neighbours", four, order[:1], nodes=4) == {}


@given(
    name=st.sampled_from(["one", "pipelines", "neighbours"]),
    pipelines=st.integers(1, 4),
    stages=st.integers(2, 7),
    standbys=st.integers(0, 3),
    zones=st.integers(2, 4),
)
def test_every_node_has_a_zone_and_no_replica_lies_with_its_stage(
    name: str, pipelines: int, stages: int, standbys: int, zones: int
) -> None:
    grid = Grid(pipelines=pipelines, stages=stages)
    order = ["abcd"[i] for i in range(zones)]
    counts = nodes_by_zone(name, grid, order, nodes=grid.size + standbys)
    if not counts:
        assert name == "pipelines"
        assert pipelines == 1
        return
    assert sum(counts.values()) == grid.size + standbys
    placed, zone_of = laid_out(name, counts, grid, "stash")
    for slot in grid.slots():
        owner, shadow = placed.owner(slot), placed.shadow(slot)
        assert shadow is not None
        assert (zone_of[owner] == zone_of[shadow]) is (name != "neighbours")
        if name == "pipelines":
            assert zone_of[owner] == zone_of[placed.owner(grid.protector(slot))]


def test_bytes_between_zones_by_hand() -> None:
    grid = Grid(pipelines=2, stages=4)
    layout = layout_of(grid, microbatches=[3, 5], mode="stash")
    sizes = costs(4, boundary=10.0, gradient=1000.0, exchange=100_000.0)

    def crossing(name: str) -> float:
        counts = nodes_by_zone(name, grid, ["a", "b"], nodes=8)
        microbatches = [row[0].microbatches for row in layout.programs]
        laid = laid_out(name, counts, grid, "stash")
        return crossing_bytes(*laid, sizes, microbatches=microbatches)

    assert crossing("one") == 0
    # Each of the 8 owners sends its share to its one peer, in the other zone.
    assert crossing("pipelines") == 8 * 100_000
    # 3 boundaries each way for 3 and 5 microbatches; all 8 reduced gradients.
    assert crossing("neighbours") == 2 * 3 * 10 * (3 + 5) + 8 * 1000
    sizes = replace(sizes, back_bytes=(4.0,) * 4)
    assert crossing("neighbours") == 3 * (10 + 4) * (3 + 5) + 8 * 1000


@settings(max_examples=60, deadline=None)
@given(
    pipelines=st.integers(1, 2),
    stages=st.integers(2, 5),
    mode=st.sampled_from(["off", "stash", "peer"]),
    victims=st.integers(1, 6),
    standbys=st.integers(0, 2),
)
def test_fatal_losses_are_those_of_trying_all(
    pipelines: int, stages: int, mode: str, victims: int, standbys: int
) -> None:
    """By the definition: a stage that has no live owner or shadow in any pipeline (`off`: in its
    own)."""
    grid = Grid(pipelines=pipelines, stages=stages)
    placed, zone_of = laid_out("one", {"a": grid.size + standbys}, grid, mode)
    members = sorted(zone_of)
    victims = min(victims, len(members))

    def fatal(lost: set[NodeId]) -> bool:
        for slot in grid.slots():
            kept = grid.column(slot.stage) if mode != "off" else (slot,)
            copies = {n for s in kept for n in (placed.owner(s), placed.shadow(s)) if n}
            if copies <= lost:
                return True
        return False

    share = sum(fatal(set(lost)) for lost in combinations(members, victims)) / comb(
        len(members), victims
    )
    groups = copies_of_stages(placed, mode)
    assert fatal_share(groups, members, victims) == pytest.approx(share)


def test_a_sample_is_fixed_and_near_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid(pipelines=1, stages=16)
    placed, zone_of = laid_out("one", {"a": 16}, grid, "stash")
    groups, members = copies_of_stages(placed, "stash"), sorted(zone_of)
    exact = fatal_share(groups, members, 3)
    monkeypatch.setattr(model, "ENUMERATED", 10)
    drawn = fatal_share(groups, members, 3)
    assert drawn == fatal_share(groups, members, 3)
    assert drawn == pytest.approx(exact, abs=0.03)
    assert drawn != exact


def test_the_hazard_is_that_of_the_trace() -> None:
    """167 losses at 79 instants; without copies every one of them is fatal."""
    assert sum(often for _, often in LOSSES_AT_ONCE) == 79
    assert sum(taken * often for taken, often in LOSSES_AT_ONCE) == 167
    grid = Grid(pipelines=1, stages=8)
    placed, zone_of = laid_out("one", {"a": 8}, grid, "off")
    instants = LOSSES_PER_NODE_HOUR * 8 * 79 / 167
    assert fatal_per_hour(placed, zone_of, "off") == pytest.approx(instants)
    # Two nodes: nobody is lost more often than the hazard says.
    pair = Grid(pipelines=1, stages=2)
    placed, zone_of = laid_out("one", {"a": 2}, pair, "off")
    assert fatal_per_hour(placed, zone_of, "off") < 2 * LOSSES_PER_NODE_HOUR


def test_a_calm_network_and_a_long_run_want_neighbours_apart() -> None:
    found = priced(Grid(pipelines=1, stages=4), boundary=1e3, gradient=1e3)
    assert list(found) == ["one", "neighbours"]
    assert found["one"].fatal_per_hour > 0.3
    assert found["neighbours"].fatal_per_hour == 0
    assert taken(found) == "neighbours"


def test_large_activations_want_one_zone() -> None:
    found = priced(Grid(pipelines=1, stages=4), boundary=1e9)
    assert found["neighbours"].crossing_bytes == 3 * 2 * 8 * 1e9
    assert found["neighbours"].transfer_usd_per_hour == pytest.approx(48 * 0.02 * 3600)
    assert taken(found) == "one"


def test_pipelines_apart_save_each_other_where_boundaries_are_large() -> None:
    found = priced(Grid(pipelines=2, stages=4), mode="peer", boundary=1e9)
    assert found["pipelines"].fatal_per_hour == 0
    assert found["one"].fatal_per_hour > 0
    assert taken(found) == "pipelines"


def test_what_a_fatal_loss_costs() -> None:
    found = priced(Grid(pipelines=1, stages=4))["one"]
    lost_h = (DAY_OF_STEPS / 2 + RESTART_S) / 3600
    assert found.instances_usd_per_hour == 4.0
    assert found.fatal_usd_per_hour == pytest.approx(found.fatal_per_hour * 4 * lost_h)
    often = replace(STAKES, checkpoint_every=10)
    kept = priced(Grid(pipelines=1, stages=4), stakes=often)["one"]
    assert kept.fatal_usd_per_hour == pytest.approx(kept.fatal_per_hour * 4 * 80 / 3600)


def test_each_spread_has_the_interval_that_is_best_for_it() -> None:
    """Where it is left open; a fatal loss costs half of it."""
    open_ = replace(STAKES, checkpoint_every=None)
    found = priced(Grid(pipelines=2, stages=4), mode="peer", stakes=open_)
    rare, often = found["pipelines"], found["one"]
    assert (rare.fatal_per_hour, rare.checkpoint_every) == (0, 3600)
    assert 10 <= often.checkpoint_every < 3600
    lost_h = (often.checkpoint_every / 2 + RESTART_S) / 3600
    price = often.fatal_per_hour * often.instances_usd_per_hour * lost_h
    assert often.fatal_usd_per_hour == pytest.approx(price)


def test_what_is_not_preempted_stays_in_the_cheapest_zone() -> None:
    alike = Stakes(zone_usd_per_hour={"b": 1.0, "a": 1.0}, preemptible=False, steps=100)
    found = priced(Grid(pipelines=2, stages=2), stakes=alike)
    assert {spread.fatal_per_hour for spread in found.values()} == {0.0}
    assert taken(found) == "one"
    assert found["one"].zones == {"a": 4}


def test_dozens_of_nodes_are_priced_in_no_time() -> None:
    """By a sample: there are millions of sets of victims."""
    found = priced(Grid(pipelines=1, stages=40), standbys=4)
    assert found["one"].fatal_per_hour > 0.5
    assert found["neighbours"].fatal_per_hour == 0
    # Eight nodes have a copy of each stage here, and no instant takes more than six.
    assert priced(Grid(pipelines=4, stages=12))["one"].fatal_per_hour == 0


def test_a_group_within_a_larger_one_decides_and_no_share_is_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = [NodeId(f"n{number}") for number in range(7)]
    pair, three = frozenset(members[:2]), frozenset(members[:3])
    # Of 35 sets of three, five have both nodes of the pair.
    assert fatal_share((pair,), members, 3) == 5 / 35
    assert fatal_share((pair, three), members, 3) == 5 / 35
    monkeypatch.setattr(model, "_share", lambda *_: pytest.fail("it was counted again"))
    others = [NodeId(f"other{number}") for number in range(7)]
    assert fatal_share((frozenset(others[:2]),), others, 3) == 5 / 35


def test_pipelines_of_one_stage_survive_their_zone_whatever_stands_by() -> None:
    grid = Grid(pipelines=2, stages=1)
    for nodes in (2, 3, 4):
        zones = nodes_by_zone("pipelines", grid, ["a", "b"], nodes=nodes)
        assert sum(zones.values()) == nodes
        placed, zone_of = laid_out("pipelines", zones, grid, "peer")
        assert {zone_of[owner] for owner in placed.owners} == {"a", "b"}
        assert fatal_per_hour(placed, zone_of, "peer") == 0
    assert nodes_by_zone("neighbours", grid, ["a", "b"], nodes=2) == {}
    within, zone_of = laid_out("one", {"a": 2}, grid, "peer")
    assert fatal_per_hour(within, zone_of, "peer") > 0
