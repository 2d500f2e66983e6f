"""What a loss comes to, against the core itself, and the sentences of the plan."""

from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bamboo.core.machine import transition
from bamboo.core.state import Outcome as End
from bamboo.core.state import Phase, Policy, State, initial_state
from bamboo.ids import NodeId, run_id
from bamboo.planner.risks.survival import Outcome, broken, copies_of_slots, outcome, survival
from bamboo.planner.risks.zones import laid_out
from bamboo.planner.step.layout import layout_of
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import BARE_MODES
from tests.core.build import joined, lost

MODES = ("off", "stash", "peer")


def at_start(pipelines: int, stages: int, mode: str) -> Assignment:
    return layout_of(
        Grid(pipelines=pipelines, stages=stages), microbatches=[2], mode=mode
    ).assignment


def running(pipelines: int, stages: int, mode: str, every: int) -> tuple[State, Policy]:
    policy = Policy(
        cuts=tuple((*range(n), stages) for n in range(min(2, stages), stages + 1)),
        virtual_nodes=pipelines,
        pipelines=pipelines,
        stages=stages,
        checkpoint_every=every,
    )
    grid = Grid(pipelines=pipelines, stages=stages)
    state = initial_state(run=run_id("test"), grid=grid, redundancy=mode)
    for index in range(grid.size):
        event = joined(f"n{index:02}.1")
        state = transition(state, event, now_s=0.0, policy=policy).state
    return state, policy


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    pipelines=st.integers(1, 3),
    stages=st.integers(1, 4),
    mode=st.sampled_from(MODES),
    every=st.sampled_from([0, 5]),
)
def test_the_core_does_what_the_plan_says(
    data: st.DataObject, pipelines: int, stages: int, mode: str, every: int
) -> None:
    """All victims at one instant: nobody else says anything in between."""
    assume(pipelines * stages > 1)  # else no victim leaves anybody
    mode = mode if stages > 1 or mode in BARE_MODES else "peer"
    state, policy = running(pipelines, stages, mode, every)
    assert state.assignment is not None
    nodes = sorted(state.assignment.members())
    victims = data.draw(st.sets(st.sampled_from(nodes), min_size=1, max_size=len(nodes) - 1))
    said = outcome(state.assignment, mode, victims, checkpoint_every=every)
    for victim in sorted(victims):
        state = transition(state, lost(victim), now_s=1.0, policy=policy).state
    if said is Outcome.INSIDE:
        assert state.phase in (Phase.FAILING_OVER, Phase.DEGRADED)
    elif said is Outcome.ENDED and (mode == "off" or pipelines == 1):
        assert state.outcome is End.UNRECOVERABLE
    else:
        assert state.phase is Phase.RECONFIGURING


@given(
    pipelines=st.integers(1, 3), stages=st.integers(2, 5), mode=st.sampled_from([*MODES, "eager"])
)
def test_counts_are_those_of_trying_all(pipelines: int, stages: int, mode: str) -> None:
    placed = at_start(pipelines, stages, mode)
    nodes = sorted(placed.members())
    groups = copies_of_slots(placed)
    tried = [
        sum(any(group <= set(victims) for group in groups) for victims in combinations(nodes, size))
        for size in (1, 2)
    ]
    assert list(broken(groups, len(nodes))) == tried


def test_one_pipeline_with_replicas() -> None:
    assert survival(at_start(1, 4, "stash"), "stash", checkpoint_every=0) == (
        "The loss of any one of the 4 nodes is survived inside the step by its shadow.",
        "Of the 6 pairs of nodes lost at the same instant, 2 are survived inside the step, 4 (a "
        "node and the one that shadows it) end the run.",
        "The loss of the whole pipeline ends the run.",
    )
    kept = survival(at_start(1, 3, "stash"), "stash", checkpoint_every=7)
    assert kept[1].endswith(
        "3 (a node and the one that shadows it) are restored from the newest checkpoint."
    )
    assert "at most 7 steps" in kept[2]
    assert survival(at_start(1, 2, "stash"), "stash", checkpoint_every=0)[1] == (
        "Of the 1 pair of nodes lost at the same instant, 1 (a node and the one that shadows it) "
        "ends the run."
    )


def test_two_pipelines_save_each_other() -> None:
    single, pairs, whole, gap = survival(at_start(2, 4, "eager"), "eager", checkpoint_every=0)
    assert "inside the step by its shadow" in single
    assert pairs == (
        "Of the 28 pairs of nodes lost at the same instant, 20 are survived inside the step, 8 (a "
        "node and the one that shadows it) are survived from another pipeline."
    )
    assert whole == (
        "The loss of a whole pipeline is survived from another pipeline: the step is done again."
    )
    assert gap.startswith("What is survived from another pipeline but leaves no pipeline whole")
    assert gap.endswith("ends the run.")
    kept = survival(at_start(2, 4, "eager"), "eager", checkpoint_every=5)
    assert kept[3].endswith("goes back to the newest checkpoint.")
    single, pairs, whole, gap = survival(at_start(2, 4, "peer"), "peer", checkpoint_every=0)
    assert single.endswith("is survived from another pipeline: the step is done again.")
    assert pairs == (
        "Of the 28 pairs of nodes lost at the same instant, 24 are survived from another pipeline, "
        "4 (all the nodes of one stage) end the run."
    )
    assert "from another pipeline" in whole


@pytest.mark.parametrize(("mode", "pipelines"), [("off", 1), ("off", 2), ("peer", 1)])
def test_without_copies_only_a_checkpoint_helps(mode: str, pipelines: int) -> None:
    bare = at_start(pipelines, 2, mode)
    ends = survival(bare, mode, checkpoint_every=0)
    assert f"nodes ends the run. Redundancy is {mode!r}" in ends[0]
    kept = survival(bare, mode, checkpoint_every=1)
    assert kept[0].endswith(
        "is restored from the newest checkpoint: at most 1 step, and those taken while one is "
        "written, are done again."
    )


def test_where_one_stage_is_the_whole_model_a_pipeline_is_a_node() -> None:
    three = survival(at_start(3, 1, "peer"), "peer", checkpoint_every=0)
    assert three == (
        "The loss of any one of the 3 nodes is survived from another pipeline: the step is done "
        "again.",
        "Of the 3 pairs of nodes lost at the same instant, 3 are survived from another pipeline.",
    )
    assert survival(at_start(2, 1, "peer"), "peer", checkpoint_every=0)[1] == (
        "Of the 1 pair of nodes lost at the same instant, 1 (both nodes) ends the run."
    )
    (alone,) = survival(at_start(1, 1, "off"), "off", checkpoint_every=0)
    assert alone.startswith("The loss of the only node ends the run. Redundancy is 'off', and no")
    (grows,) = survival(at_start(1, 1, "peer"), "peer", checkpoint_every=0)
    assert grows.endswith("and at the start there is none: take cluster.pipelines = 2.")
    (kept,) = survival(at_start(1, 1, "off"), "off", checkpoint_every=5, zones={NodeId("0.0"): "a"})
    assert kept.startswith("The loss of the only node is restored from the newest checkpoint: at")


def test_a_zone() -> None:
    grid = Grid(pipelines=1, stages=4)
    for name, zones, says in (
        ("neighbours", {"a": 2, "b": 2}, "any one of the 2 zones is survived inside the step"),
        ("one", {"a": 4}, "all nodes, which lie in zone a, ends the run"),
    ):
        placed, zone_of = laid_out(name, zones, grid, "stash")
        assert says in survival(placed, "stash", checkpoint_every=0, zones=zone_of)[-1]
    two = Grid(pipelines=2, stages=2)
    placed, zone_of = laid_out("pipelines", {"a": 2, "b": 2}, two, "stash")
    last = survival(placed, "stash", checkpoint_every=0, zones=zone_of)[-1]
    assert "any one of the 2 zones is survived from another pipeline" in last


def test_a_layout_of_the_core_is_what_the_dry_run_has() -> None:
    grid = Grid(pipelines=2, stages=3)
    placed, _ = laid_out("one", {"a": 6}, grid, "eager")
    theirs = layout_of(grid, microbatches=[2], mode="eager").assignment
    names = dict(zip(theirs.owners, placed.owners, strict=True))
    assert tuple(names[NodeId(str(s))] for s in theirs.shadows) == placed.shadows
