"""The canonical tree: the same bits for every mapping of leaves to pipelines, in any order."""

import math
import random
import struct
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.topology.reduction import TreeSum, split, subtrees
from bamboo.topology.virtual_nodes import blocks


def single(value: float) -> float:
    """Rounded to float32, where the order of additions shows at once."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def add_single(a: float, b: float) -> float:
    return single(a + b)


def by_definition(values: list[float], lo: int, hi: int) -> float:
    if hi - lo == 1:
        return values[lo]
    mid = split(lo, hi)
    return add_single(by_definition(values, lo, mid), by_definition(values, mid, hi))


def leaf_values(count: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [single(draw.gauss(0, 1) * 10 ** draw.uniform(-4, 4)) for _ in range(count)]


@given(st.integers(2, 5000), st.integers(0, 99))
def test_the_left_side_is_the_largest_power_of_two_below(leaves: int, start: int) -> None:
    left = split(start, start + leaves) - start
    assert left & (left - 1) == 0
    assert left < leaves <= 2 * left


@pytest.mark.parametrize(("lo", "hi"), [(3, 4), (3, 3)])
def test_one_leaf_has_no_split(lo: int, hi: int) -> None:
    with pytest.raises(ValueError, match="no split"):
        split(lo, hi)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int, int]:
    leaves = draw(st.integers(1, 200))
    lo = draw(st.integers(0, leaves - 1))
    return lo, draw(st.integers(lo + 1, leaves)), leaves


@given(ranges())
def test_subtrees_cover_the_block_once_and_are_few(block: tuple[int, int, int]) -> None:
    lo, hi, leaves = block
    nodes = subtrees(lo, hi, leaves)
    assert [leaf for a, b in nodes for leaf in range(a, b)] == list(range(lo, hi))
    assert len(nodes) <= max(1, 2 * math.ceil(math.log2(hi - lo + 1)))


@given(ranges())
def test_subtrees_are_nodes_and_no_two_of_them_are_siblings(block: tuple[int, int, int]) -> None:
    lo, hi, leaves = block
    tree = TreeSum[int](leaves, add)
    for a, b in subtrees(lo, hi, leaves):
        tree.push(a, b, b - a)
    # Were two of them siblings they would have merged, and were one no node it would be refused.
    assert list(tree.partials) == list(subtrees(lo, hi, leaves))


def test_an_empty_block_has_no_subtree() -> None:
    assert subtrees(3, 3, 8) == ()


@given(st.integers(1, 60), st.randoms(use_true_random=False), st.integers(0, 9))
def test_leaves_may_come_in_any_order(leaves: int, order: random.Random, seed: int) -> None:
    values = leaf_values(leaves, seed)
    tree = TreeSum[float](leaves, add_single)
    for leaf in order.sample(range(leaves), leaves):
        assert tree.root is None
        tree.push(leaf, leaf + 1, values[leaf])
    assert tree.root == by_definition(values, 0, leaves)
    assert list(tree.partials) == [(0, leaves)]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 9))
def test_every_number_of_pipelines_gives_the_same_bits(
    virtual_nodes: int, pipelines: int, seed: int
) -> None:
    pipelines = min(pipelines, virtual_nodes)
    values = leaf_values(virtual_nodes, seed)
    whole = TreeSum[float](virtual_nodes, add_single)
    for block in blocks(virtual_nodes, pipelines):
        mine = TreeSum[float](virtual_nodes, add_single)
        for leaf in block:
            mine.push(leaf, leaf + 1, values[leaf])
        assert list(mine.partials) == list(subtrees(block.start, block.stop, virtual_nodes))
        for (lo, hi), value in mine.partials.items():
            whole.push(lo, hi, value)
    assert whole.root == by_definition(values, 0, virtual_nodes)


def test_a_sum_in_sequence_is_another_one() -> None:
    # The reason for the tree: were these equal, the tests above would show nothing.
    values = leaf_values(16, seed=1)
    sequence = values[0]
    for value in values[1:]:
        sequence = add_single(sequence, value)
    assert sequence != by_definition(values, 0, 16)


@pytest.mark.parametrize(("lo", "hi"), [(1, 3), (2, 5), (0, 7), (5, 5), (6, 9)])
def test_what_is_no_node_of_the_tree_is_refused(lo: int, hi: int) -> None:
    with pytest.raises(ValueError, match="no node of the tree"):
        TreeSum[int](8, add).push(lo, hi, 1)
