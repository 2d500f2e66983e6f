"""Keyed randomness: equal keys give equal seeds for ever, different keys different ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.topology.keys import keyed_seed

keys = st.tuples(
    st.integers(0, 2**31),
    st.sampled_from(["init", "layer", "shuffle"]),
    st.lists(st.integers(0, 10**6), max_size=4).map(tuple),
)


@given(keys, keys)
def test_only_equal_keys_give_equal_seeds(
    one: tuple[int, str, tuple[int, ...]], other: tuple[int, str, tuple[int, ...]]
) -> None:
    first = keyed_seed(one[0], one[1], *one[2])
    second = keyed_seed(other[0], other[1], *other[2])
    assert (first == second) == (one == other)
    assert 0 <= first < 2**63


@pytest.mark.parametrize(
    ("seed", "purpose", "indices", "expected"),
    [
        (1, "init", (0,), 8511695927518980176),
        (1, "layer", (3, 5, 2), 8344582615567350512),
        (7, "shuffle", (0,), 3894847892810391127),
    ],
)
def test_the_seeds_of_finished_runs_stay(
    seed: int, purpose: str, indices: tuple[int, ...], expected: int
) -> None:
    # Written down, not computed: a change here would make every finished run fail to verify.
    assert keyed_seed(seed, purpose, *indices) == expected
