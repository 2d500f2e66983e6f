"""The redundancy that the planner chooses: where it pays and where not, never one in which the
first loss ends the run, the least of equals, and one sentence why."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo.planner.plans.candidates import JobFitsNowhere, Room
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.modes import Chosen, choose_mode, lasting_modes
from bamboo.planner.plans.ranking import SAME, ranked
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.hazards import said
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import BY_REDUNDANCY, REDUNDANCY_MODES
from tests.planner.workloads import stakes, workload

GRID = Grid(pipelines=1, stages=4)
ROOM = Room(memory_bytes=2**40, nodes=range(2, 9))
STORMY = Hazard(stakes=stakes(checkpoint_every=1000))
NO_CHECKPOINTS = Hazard(stakes=stakes(checkpoint_every=0))


def chosen(work: WorkloadFigures, hazard: Hazard, room: Room = ROOM, grid: Grid = GRID) -> Chosen:
    return choose_mode(work, grid, room, hazard, spread="one", standbys=0)


def test_it_is_taken_where_it_pays_and_left_out_where_it_does_not() -> None:
    """The link is slow: shipping a gradient takes longer than a step."""
    work = workload(bytes_per_s=1.3e4, parameters=2000)
    assert chosen(work, STORMY).taken.choice.mode == "stash"
    rarely = chosen(work, replace(STORMY, rate=said(0.001)))
    assert rarely.taken.choice.mode == "off"
    assert "redundancy makes a step" in rarely.why
    on_demand = chosen(work, Hazard(stakes=stakes(preemptible=False)))
    assert on_demand.taken.choice.mode == "off"
    assert "on demand nothing is lost" in on_demand.why


def test_it_is_left_out_where_the_job_is_short_or_the_link_slower_still() -> None:
    """Half of what a short job has done is less than what redundancy costs it."""
    work = workload(bytes_per_s=1.3e4, parameters=2000)
    assert chosen(work, STORMY).taken.choice.mode == "stash"
    short = replace(STORMY, stakes=replace(STORMY.stakes, steps=5))
    assert chosen(work, short).taken.choice.mode == "off"
    slower = chosen(replace(work, bytes_per_s=1.3e3), STORMY)
    assert slower.taken.choice.mode == "off"
    assert "redundancy makes a step" in slower.why


def test_no_mode_is_taken_in_which_the_first_loss_ends_the_run() -> None:
    work = workload(bytes_per_s=1.3e4, parameters=2000)
    rarely = replace(NO_CHECKPOINTS, rate=said(0.001))
    found = chosen(work, rarely)
    assert found.taken.choice.mode == "stash"
    assert "off would end the run with the first loss, as there are no checkpoints" in found.why
    assert "off" not in lasting_modes(rarely.stakes, work, nodes=4)
    assert lasting_modes(STORMY.stakes, work, nodes=4) == REDUNDANCY_MODES
    # Left to the plan, there are checkpoints where the run is long.
    open_ = stakes(checkpoint_every=None)
    assert "off" not in lasting_modes(replace(open_, steps=10), work, nodes=4)
    assert "off" in lasting_modes(replace(open_, steps=100_000), work, nodes=4)


def test_with_one_stage_it_is_peer_where_nodes_are_taken_and_off_where_not() -> None:
    two = Grid(pipelines=2, stages=1)
    work = workload(bytes_per_s=1e6)
    assert chosen(work, STORMY, grid=two).taken.choice.mode == "peer"
    bare = chosen(work, NO_CHECKPOINTS, grid=two)
    assert bare.taken.choice.mode == "peer"
    assert bare.why.endswith("it costs nothing, as every node has the whole model.")
    on_demand = chosen(work, Hazard(stakes=stakes(preemptible=False)), grid=two)
    assert on_demand.taken.choice.mode == "off"
    alone = chosen(work, NO_CHECKPOINTS, grid=Grid(pipelines=1, stages=1))
    assert alone.taken.choice.mode == "off"
    assert alone.why.endswith("a run of one node has no other to keep a copy.")


def test_it_is_taken_all_the_same_where_nothing_else_fits() -> None:
    work = workload(parameters=4000)
    needs = {
        mode: min(
            one.choice.most_bytes
            for one in ranked(
                work,
                replace(ROOM, grids=(GRID,), modes=(mode,), microbatches=(2,)),
                NO_CHECKPOINTS,
            )
        )
        for mode in ("off", "stash")
    }
    assert needs["off"] < needs["stash"]
    found = chosen(work, NO_CHECKPOINTS, replace(ROOM, memory_bytes=needs["off"]))
    assert found.taken.choice.mode == "off"
    assert found.why.endswith(": no other mode fits.")


def test_where_no_mode_fits_the_nearest_plans_are_named() -> None:
    with pytest.raises(JobFitsNowhere, match="nearest plans that fit") as was:
        chosen(workload(parameters=4000), STORMY, replace(ROOM, memory_bytes=120_000))
    assert [one.name for one in was.value.nearest] == [
        "1 x 8 off, microbatches of 2",
        "1 x 8 off, microbatches of 1",
    ]


def test_a_given_cut_leaves_out_modes_that_need_another() -> None:
    given_cut = (0, 1, 2, 3, 8)
    work = replace(workload(parameters=4000), cuts={4: given_cut})
    alone = replace(ROOM, grids=(GRID,), microbatches=(2,), modes=("stash",))
    (stash,) = ranked(work, alone, NO_CHECKPOINTS)
    assert stash.choice.cut == given_cut
    tight = replace(ROOM, memory_bytes=stash.choice.most_bytes)
    # Modes that compute ahead hold more, and fit with another cut alone.
    (eager,) = ranked(work, replace(alone, memory_bytes=tight.memory_bytes, modes=("eager",)),
                      NO_CHECKPOINTS)  # fmt: skip
    assert eager.choice.cut != given_cut
    found = choose_mode(work, GRID, tight, NO_CHECKPOINTS, spread="one", standbys=0, cut=given_cut)
    assert found.taken.choice.cut == given_cut


@st.composite
def cases(draw: st.DrawFn) -> tuple[WorkloadFigures, Grid, Hazard]:
    """A small workload on one or two pipelines of three stages, and how often nodes are lost."""
    pipelines = draw(st.integers(1, 2))
    work = workload(
        layers=draw(st.integers(4, 7)),
        virtual_nodes=max(pipelines, draw(st.sampled_from([1, 2, 4]))),
        microbatches=draw(st.integers(1, 3)),
        parameters=draw(st.integers(10, 5000)),
        bytes_per_s=draw(st.sampled_from([0.0, 1e4, 1e6])),
    )
    hazard = Hazard(
        stakes=stakes(checkpoint_every=draw(st.sampled_from([None, 0, 10, 1000]))),
        rate=said(draw(st.sampled_from([0.0, 0.01, 0.6, 5.0]))),
    )
    return work, Grid(pipelines=pipelines, stages=3), hazard


@pytest.mark.timeout(120)
@settings(max_examples=25, deadline=None)
@given(cases())
def test_none_with_less_redundancy_is_worth_as_much_and_none_more(
    case: tuple[WorkloadFigures, Grid, Hazard],
) -> None:
    work, grid, hazard = case
    found = chosen(work, hazard, grid=grid)
    modes = lasting_modes(hazard.stakes, work, nodes=grid.size)
    room = replace(ROOM, grids=(grid,), microbatches=(2,), modes=modes)
    values = {one.choice.mode: one.value for one in ranked(work, room, hazard)}
    mode, best = found.taken.choice.mode, max(values.values())
    assert values[mode] >= best * (1 - SAME)
    for less in BY_REDUNDANCY[: BY_REDUNDANCY.index(mode)]:
        assert values.get(less, 0.0) < best * (1 - SAME)
    assert found.why.startswith(f"redundancy auto is {mode} (")
    assert found.why.endswith(".")
    assert ". " not in found.why
