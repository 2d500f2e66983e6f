"""The memory report: counted by hand for a small case, and bounded for all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.layers.memory import memory_report, partials_at_end, partials_held
from bamboo.topology.grid import Grid
from bamboo.topology.reduction import subtrees
from bamboo.topology.strategy import REDUNDANCY_MODES
from bamboo.topology.virtual_nodes import BatchShape, blocks

LAYERS = [
    LayerFacts(
        name=f"l{n}",
        parameters=10 * (n + 1),
        forward_flops=1.0,
        output_bytes=100 * (n + 1),
        activation_bytes=1000 * (n + 1),
    )
    for n in range(4)
]
GRID = Grid(pipelines=1, stages=2)
SHAPE = BatchShape(virtual_nodes=1, microbatches=3)


def test_a_case_counted_by_hand() -> None:
    first, last = memory_report(LAYERS, cut=(0, 3, 4), grid=GRID, shape=SHAPE, mode="eager")
    assert (first.parameters, last.parameters) == (240, 160)
    assert (first.gradients, first.moments, first.partials) == (240, 480, 0)
    assert first.activations == 3 * 6000
    assert last.activations == 1 * 4000
    assert first.stash == 2 * 3 * 300
    assert last.stash == 2 * 3 * 300
    assert (first.replica, last.replica) == (4 * 160, 4 * 240)
    assert (first.shipping, last.shipping) == (240, 160)
    assert (first.ahead, last.ahead) == (3 * 4000, 3 * 6000)
    assert first.total == 240 + 240 + 480 + 18000 + 1800 + 640 + 240 + 12000


def test_off_keeps_no_copy_and_stash_computes_nothing_ahead() -> None:
    off = memory_report(LAYERS, cut=(0, 2, 4), grid=GRID, shape=SHAPE, mode="off")
    assert all(s.replica == s.stash == s.shipping == s.ahead == 0 for s in off)
    stash = memory_report(LAYERS, cut=(0, 2, 4), grid=GRID, shape=SHAPE, mode="stash")
    assert all(s.replica > 0 and s.stash > 0 and s.ahead == 0 for s in stash)


def test_a_cut_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not cut 4 layers into 2 stages"):
        memory_report(LAYERS, cut=(0, 2), grid=GRID, shape=SHAPE, mode="off")


@given(st.integers(1, 24), st.integers(1, 8))
def test_partials_are_those_of_the_tree_and_few(virtual_nodes: int, pipelines: int) -> None:
    if pipelines > virtual_nodes:
        return
    for block in blocks(virtual_nodes, pipelines):
        at_end = len(subtrees(block.start, block.stop, virtual_nodes))
        assert partials_at_end(block, virtual_nodes) == at_end
        held = partials_held(block, virtual_nodes)
        assert at_end <= max(held, 1)
        assert held <= 2 * len(block).bit_length() + 1


def test_the_node_before_a_stage_holds_what_is_computed_ahead_of_it() -> None:
    grid, shape = Grid(pipelines=1, stages=2), BatchShape(virtual_nodes=2, microbatches=3)

    def ahead(mode: str) -> list[int]:
        report = memory_report(LAYERS, cut=(0, 2, 4), grid=grid, shape=shape, mode=mode)
        return [node.ahead for node in report]

    both = ahead("eager")
    assert min(both) > 0
    assert ahead("stash,full") == [both[0], 0]
    assert ahead("gap,stash") == [0, both[1]]


@given(st.sampled_from(REDUNDANCY_MODES), st.integers(1, 4), st.integers(1, 5))
def test_each_mode_holds_at_least_what_the_cheaper_one_holds(
    mode: str, pipelines: int, microbatches: int
) -> None:
    grid = Grid(pipelines=pipelines, stages=2)
    shape = BatchShape(virtual_nodes=4, microbatches=microbatches)
    at = REDUNDANCY_MODES.index(mode)
    totals = [
        [s.total for s in memory_report(LAYERS, cut=(0, 2, 4), grid=grid, shape=shape, mode=m)]
        for m in REDUNDANCY_MODES[: at + 1]
    ]
    assert all(low <= high for low, high in zip(totals[0], totals[-1], strict=True))
