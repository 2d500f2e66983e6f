"""Step times by shape: those of the full dry run, and the same for the same pattern of nodes."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo.ids import NodeId, ZoneId
from bamboo.planner.profiles.workload import WorkloadFigures, uniform_workload
from bamboo.planner.step.cost import costs_for, expected, layout_for
from bamboo.planner.step.figures import plan_run, step_time_s
from bamboo.planner.step.layout import Costs, layout_of, merged
from bamboo.planner.step.links import Link, ZoneLinks
from bamboo.planner.step.step_time import StepTimes
from bamboo.planner.sync.situation import Syncing
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.virtual_nodes import BatchShape

F_S, B_S = 0.01, 0.02


def workload(virtual_nodes: int = 4, microbatches: int = 2) -> WorkloadFigures:
    return uniform_workload(
        name="test",
        source="given",
        layers=8,
        forward_s=F_S,
        backward_s=B_S,
        parameters=1000,
        moment_bytes=8000,
        output_bytes=64,
        shape=BatchShape(virtual_nodes=virtual_nodes, microbatches=microbatches),
        batch=16,
    )


def returning(back_bytes: int | None) -> WorkloadFigures:
    """The same, with so many bytes of the gradient of each layer's output."""
    work = workload()
    layers = tuple(replace(layer, back_bytes=back_bytes) for layer in work.layers)
    return replace(work, layers=layers)


@pytest.mark.parametrize("mode", ["off", "stash", "eager", "gap"])
@pytest.mark.parametrize(("pipelines", "stages"), [(1, 4), (2, 4), (2, 2), (3, 4)])
def test_a_calm_grid_takes_what_its_dry_run_takes(pipelines: int, stages: int, mode: str) -> None:
    grid = Grid(pipelines=pipelines, stages=stages)
    shares = equal_shares(4, pipelines)
    layout = layout_of(grid, microbatches=[2 * share for share in shares], mode=mode)
    layers = 8 // stages
    costs = Costs.of(stages, forward_s=[F_S * layers], backward_s=[B_S * layers])
    whole_s = step_time_s(plan_run(layout, costs, steps=2))
    assert StepTimes(workload(), mode).calm_s(grid, shares) == pytest.approx(whole_s, rel=1e-6)


@pytest.mark.parametrize("mode", ["off", "stash", "eager", "gap", "full"])
def test_owner_and_replica_take_the_optimizers_time(mode: str) -> None:
    """Each stage that of its layers, as the plan's own dry run has it."""
    grid, shares = Grid(pipelines=1, stages=4), equal_shares(4, 1)
    without = workload()
    layers_s = tuple(0.001 * (number + 1) for number in range(8))
    work = replace(without, optimizer_s=layers_s)
    step_s = StepTimes(work, mode).calm_s(grid, shares)
    of_first_s, of_last_s = sum(layers_s[:2]), sum(layers_s[6:])
    longer_s = step_s - StepTimes(without, mode).calm_s(grid, shares)
    assert of_first_s * 0.99 <= longer_s
    # In `full` what is computed ahead has the optimizer's time, too, to fill.
    assert longer_s <= 2 * of_last_s or mode == "full"
    assert StepTimes(work, mode).floor_s(grid, shares) <= step_s * 1.0001
    planned = expected(work, grid, mode)
    assert step_s == planned.step_s
    whole = plan_run(layout_for(grid, shape=work.shape, mode=mode), costs_for(work, grid))
    assert step_s == pytest.approx(step_time_s(whole), rel=1e-3)
    assert (planned.redundant > 0) is (mode != "off"), "a replica steps, too"


@pytest.mark.parametrize("mode", ["eager", "full"])
def test_a_step_has_one_time_where_steps_are_unlike_each_other(mode: str) -> None:
    """What is left of a step's redundancy is done in the next one; the plan averages over both."""
    forward_s = (0.0292, 0.0128, 0.0255, 0.0268)
    work = replace(
        workload(virtual_nodes=1, microbatches=8),
        forward_s=tuple(f / 2 for f in forward_s for _ in range(2)),
        backward_s=tuple(f for f in forward_s for _ in range(2)),
        optimizer_s=(0.0025,) * 8,
        cuts={4: (0, 2, 4, 6, 8)},
    )
    grid, shares = Grid(pipelines=1, stages=4), equal_shares(1, 1)
    layout = layout_for(grid, shape=work.shape, mode=mode)
    whole = plan_run(layout, costs_for(work, grid))
    assert len({b - a for a, b in pairwise(whole.commit_ns)}) > 1
    step_s = StepTimes(work, mode).calm_s(grid, shares)
    assert step_s == pytest.approx(step_time_s(whole), rel=1e-6)


def test_gradients_that_take_longer_than_a_step_are_seen_after_more_steps() -> None:
    """In the long run a step takes what its gradient takes to the shadow, and what else goes there:
    four gradients of an input, of 128 bytes each."""
    grid, shares = Grid(pipelines=1, stages=2), equal_shares(4, 1)
    slow = replace(workload(), bytes_per_s=8000.0)  # 4 layers of 4,000 bytes in 2 s
    few = plan_run(layout_for(grid, shape=slow.shape, mode="stash"), costs_for(slow, grid), steps=2)
    assert step_time_s(few) < 1.6
    settled_s = StepTimes(slow, "stash").calm_s(grid, shares)
    assert settled_s == pytest.approx(2.0 + 4 * 128 / 8000, rel=1e-3)


@given(
    st.sampled_from(["off", "stash", "gap", "full", "peer"]),
    st.integers(1, 4),
    st.integers(2, 5),
    st.tuples(st.sampled_from([0.0, 3e3, 1e5]), st.sampled_from([0.0, 0.005])),
    st.tuples(
        st.sampled_from([None, 0, 9, 400]),
        st.sampled_from([0.0, 1e5]),
        st.sampled_from([0.0, 1e4, 1e6]),
    ),
)
@settings(max_examples=60, deadline=None)
def test_no_step_takes_less_than_its_floor(
    mode: str,
    pipelines: int,
    stages: int,
    link: tuple[float, float],
    of_nodes: tuple[int | None, float, float],
) -> None:
    back_bytes, written_per_s, copied_bytes_per_s = of_nodes
    grid, shares = Grid(pipelines=pipelines, stages=stages), equal_shares(4, pipelines)
    syncing = Syncing(written_per_s=written_per_s, copied_bytes_per_s=copied_bytes_per_s)
    work = replace(returning(back_bytes), bytes_per_s=link[0], latency_s=link[1], syncing=syncing)
    times = StepTimes(work, mode)
    assert times.calm_s(grid, shares) >= times.floor_s(grid, shares)


def test_what_nodes_send_and_shadows_compute_ahead_is_counted() -> None:
    grid, shares = Grid(pipelines=2, stages=4), equal_shares(4, 2)
    # 4 microbatches of 64 bytes to each neighbour; two layers of 4,000 bytes to ship.
    ends, inner = 4 * 64, 2 * 4 * 64
    exchanged = 8000 * (1 + 1) / 2  # one partial sum, and the result of its own half
    off = StepTimes(workload(), "off")
    assert off.sent_bytes(grid, shares) == tuple(n + exchanged for n in (ends, inner, inner, ends))
    stash = StepTimes(workload(), "stash")
    shipped = tuple(n + exchanged + 8000 for n in (ends, inner, inner, ends))
    assert stash.sent_bytes(grid, shares) == shipped
    assert stash.calm_ahead(grid, shares) == ((0.0, 0.0),) * 4
    for forwards, backwards in StepTimes(workload(), "full").calm_ahead(grid, shares):
        assert 0 < backwards <= forwards <= 1
    # Of these 64 bytes only 24 have a gradient that comes back.
    masked = StepTimes(returning(24), "off").sent_bytes(grid, shares)
    assert masked == tuple(n + exchanged for n in (4 * 64, 4 * 88, 4 * 88, 4 * 24))
    assert {b for _, b in StepTimes(workload(), "eager").calm_ahead(grid, shares)} == {0.0}


def test_a_merged_node_slows_its_pipeline_and_so_all() -> None:
    grid, shares = Grid(pipelines=2, stages=4), equal_shares(4, 2)
    times = StepTimes(workload(), "stash")
    layout = layout_of(grid, microbatches=[4], mode="stash")
    hit = merged(layout, NodeId("1.2")).assignment
    assert times.of(hit, shares) > 1.3 * times.calm_s(grid, shares)


def test_one_dry_run_for_each_shape_whatever_the_names() -> None:
    grid, shares = Grid(pipelines=2, stages=4), equal_shares(4, 2)
    times = StepTimes(workload(), "stash")
    layout = layout_of(grid, microbatches=[4], mode="stash")
    one = times.of(merged(layout, NodeId("0.2")).assignment, shares)
    known = times.dry_runs
    assert times.of(merged(layout, NodeId("1.2")).assignment, shares) == one
    assert times.dry_runs == known


def test_a_node_of_two_pipelines_is_counted_in_both() -> None:
    grid, shares = Grid(pipelines=2, stages=2), equal_shares(4, 2)
    times = StepTimes(workload(), "off")
    calm = layout_of(grid, microbatches=[4], mode="off").assignment
    slots = grid.slots()
    both = calm.replace(owners={slots[2]: calm.owner(slots[0])}, shadows={})
    assert times.of(both, shares) > 1.5 * times.calm_s(grid, shares)


def test_fewer_stages_take_the_times_of_their_layers() -> None:
    work = workload()
    assert work.cut(2) == (0, 4, 8)
    assert work.sums(work.forward_s, work.cut(2)) == pytest.approx((4 * F_S, 4 * F_S))
    assert work.state_bytes(range(3)) == 3 * 1000 * 12


def test_peers_share_the_microbatches_of_a_lost_node() -> None:
    grid = Grid(pipelines=4, stages=4)
    times = StepTimes(workload(), "off")
    assert times.with_peers_s(grid, 4) == pytest.approx(times.calm_s(grid, equal_shares(4, 4)))
    assert times.with_peers_s(grid, 1) > 2 * times.with_peers_s(grid, 4)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11), st.booleans()), max_size=12))
@settings(max_examples=20, deadline=None)
def test_one_assignment_after_the_other_takes_what_each_takes_alone(
    changes: list[tuple[int, int, bool]],
) -> None:
    """What is known of the last one changes nothing."""
    grid, shares = Grid(pipelines=3, stages=4), equal_shares(4, 3)
    now = layout_of(grid, microbatches=[4, 4, 4], mode="eager").assignment
    slots, names = grid.slots(), now.owners
    following = StepTimes(workload(), "eager")
    for number, name, owns in changes:
        slot, node = slots[number], names[name]
        owners, shadows = ({slot: node}, {}) if owns else ({}, {slot: node})
        now = now.replace(owners=owners, shadows=shadows)
        assert following.of(now, shares) == StepTimes(workload(), "eager").of(now, shares)


def test_links_between_zones_cost_time_where_a_pipeline_crosses_them() -> None:
    grid, shares = Grid(pipelines=2, stages=4), equal_shares(4, 2)
    calm = layout_of(grid, microbatches=[4], mode="stash").assignment
    slow = replace(workload(), far=ZoneLinks(others=Link(latency_s=0.0, bytes_per_s=5_000.0)))
    times = StepTimes(slow, "stash")
    together = {node: ZoneId("a") for node in calm.owners}
    apart = {node: ZoneId("ab"[index % 4 // 2]) for index, node in enumerate(calm.owners)}
    whole = {node: ZoneId("ab"[index // 4]) for index, node in enumerate(calm.owners)}
    near_s = StepTimes(workload(), "stash").of(calm, shares)
    assert times.of(calm, shares, together) == pytest.approx(near_s)
    assert times.of(calm, shares, apart) > 1.05 * near_s
    assert times.of(calm, shares, whole) > near_s, "the exchange crosses"
    assert times.crossing_bytes(calm, shares, together) == 0
    assert times.crossing_bytes(calm, shares, apart) > 0
    assert slow.copy_bytes_per_s("a", "b") == 5_000.0
    assert slow.copy_bytes_per_s("a", "a") == 0.0


def test_a_pair_of_zones_may_have_a_link_of_its_own() -> None:
    grid, shares = Grid(pipelines=2, stages=4), equal_shares(4, 2)
    calm = layout_of(grid, microbatches=[4], mode="stash").assignment
    wide, narrow = (Link(latency_s=0.0, bytes_per_s=rate) for rate in (0.0, 5_000.0))
    links = ZoneLinks(others=wide, pairs={frozenset("ab"): narrow})
    work = replace(workload(), far=links)
    times = StepTimes(work, "stash")

    def step_s(zones: str) -> float:
        """Of each node in turn."""
        where = {node: ZoneId(zones[index]) for index, node in enumerate(calm.owners)}
        return times.of(calm, shares, where)

    near_s = StepTimes(workload(), "stash").of(calm, shares)
    assert step_s("aaccaacc") == pytest.approx(near_s)
    assert step_s("aabbaabb") == step_s("bbaabbaa") > 1.05 * near_s
    assert step_s("aaaabbbb") > near_s, "the exchange crosses"
    assert step_s("aaaacccc") == pytest.approx(near_s)
    assert (work.copy_bytes_per_s("b", "a"), work.copy_bytes_per_s("c", "a")) == (5_000.0, 0.0)
