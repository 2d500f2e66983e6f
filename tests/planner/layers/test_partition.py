"""The partition equals brute force, is deterministic, and refuses what cannot be cut."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.errors import InputError
from bamboo.planner.layers.partition import partition


def brute_force(costs: list[int], stages: int) -> tuple[int, ...]:
    """All cuts: least largest stage, then least sum of squares, then first."""
    layers = len(costs)
    cuts = [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]

    def key(cut: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        sums = [sum(costs[first:stop]) for first, stop in pairwise(cut)]
        return max(sums), sum(s * s for s in sums), cut

    return min(cuts, key=key)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.data())
def test_the_partition_equals_brute_force(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    assert partition(costs, stages) == brute_force(costs, stages)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=40), st.data())
def test_any_costs_give_a_whole_cut(costs: list[float], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    cut = partition(costs, stages)
    assert cut[0] == 0
    assert cut[-1] == len(costs)
    assert len(cut) == stages + 1
    assert all(first < stop for first, stop in pairwise(cut))


def test_equal_layers_are_spread_evenly() -> None:
    assert partition([1] * 8, 4) == (0, 2, 4, 6, 8)
    assert partition([1] * 10, 4) == (0, 2, 4, 7, 10)


def test_more_stages_than_layers_is_refused() -> None:
    with pytest.raises(InputError, match="3 layers cannot fill 4 stages; take 1 to 3 stages"):
        partition([1, 1, 1], 4)
    with pytest.raises(InputError, match="cannot fill 0 stages"):
        partition([1], 0)


def test_unusable_costs_are_refused() -> None:
    with pytest.raises(InputError, match="layer 1 has the cost nan"):
        partition([1, float("nan")], 1)
    with pytest.raises(InputError, match="layer 0 has the cost -1"):
        partition([-1, 2], 1)
