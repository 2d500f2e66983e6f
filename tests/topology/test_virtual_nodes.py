"""Virtual nodes: blocks cover V in order, floor or ceil each, with the fewest partial sums."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.topology.reduction import subtrees
from bamboo.topology.virtual_nodes import BatchShape, blocks


@st.composite
def divisions(draw: st.DrawFn, most: int = 70) -> tuple[int, int]:
    pipelines = draw(st.integers(1, 12))
    return draw(st.integers(pipelines, most)), pipelines


def partials(cut: tuple[range, ...], virtual_nodes: int) -> int:
    return sum(len(subtrees(b.start, b.stop, virtual_nodes)) for b in cut)


@given(divisions())
def test_blocks_cover_all_in_order_and_evenly(division: tuple[int, int]) -> None:
    virtual_nodes, pipelines = division
    cut = blocks(virtual_nodes, pipelines)
    assert len(cut) == pipelines
    assert [v for block in cut for v in block] == list(range(virtual_nodes))
    floor = virtual_nodes // pipelines
    assert {len(block) for block in cut} <= {floor, floor + 1}


@given(divisions(most=24))
def test_no_other_order_of_blocks_has_fewer_partial_sums(division: tuple[int, int]) -> None:
    virtual_nodes, pipelines = division
    floor, ceils = divmod(virtual_nodes, pipelines)
    best = None
    for bigger in combinations(range(pipelines), ceils):
        start, cut = 0, []
        for pipeline in range(pipelines):
            stop = start + floor + (pipeline in bigger)
            cut.append(range(start, stop))
            start = stop
        cost = partials(tuple(cut), virtual_nodes)
        best = cost if best is None else min(best, cost)
    assert partials(blocks(virtual_nodes, pipelines), virtual_nodes) == best


@pytest.mark.parametrize(
    ("virtual_nodes", "pipelines", "sizes"),
    [
        (4, 1, [4]),
        (4, 2, [2, 2]),
        (4, 3, [2, 1, 1]),
        (8, 3, [3, 3, 2]),
        (6, 4, [2, 2, 1, 1]),
        (5, 2, [2, 3]),
    ],
)
def test_blocks_by_example(virtual_nodes: int, pipelines: int, sizes: list[int]) -> None:
    assert [len(block) for block in blocks(virtual_nodes, pipelines)] == sizes


@pytest.mark.parametrize(("virtual_nodes", "pipelines"), [(2, 3), (0, 1), (4, 0)])
def test_too_few_virtual_nodes_are_refused(virtual_nodes: int, pipelines: int) -> None:
    with pytest.raises(ValueError, match="cannot feed"):
        blocks(virtual_nodes, pipelines)


@given(divisions(), st.integers(1, 6))
def test_every_microbatch_has_one_virtual_node_and_one_pipeline(
    division: tuple[int, int], microbatches: int
) -> None:
    virtual_nodes, pipelines = division
    shape = BatchShape(virtual_nodes=virtual_nodes, microbatches=microbatches)
    seen = [m for block in blocks(virtual_nodes, pipelines) for m in shape.microbatches_of(block)]
    assert seen == list(range(shape.total))
    for virtual_node in range(virtual_nodes):
        mine = shape.microbatches_of(range(virtual_node, virtual_node + 1))
        assert {shape.virtual_node_of(m) for m in mine} == {virtual_node}


def test_there_may_be_any_number_of_pipelines() -> None:
    assert [len(block) for block in blocks(4000, 2000)] == [2] * 2000
    sizes = [len(block) for block in blocks(1203, 1200)]
    assert sorted(sizes) == [1] * 1197 + [2] * 3
