"""What a calm step becomes where processes share cores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.planner.cost import Expected, shared_step_s

shares = st.floats(min_value=0.0, max_value=0.9)


def calm(step_s: float, *, bubble: float = 0.0, redundant: float = 0.0) -> Expected:
    return Expected(
        source="given", step_s=step_s, samples_per_s=1.0, bubble=bubble, redundant=redundant
    )


def test_bubbles_are_filled_before_anything_takes_longer() -> None:
    half = calm(2.0, bubble=0.5)
    assert shared_step_s(half, nodes=4, cores=2) == 2.0
    assert shared_step_s(half, nodes=8, cores=2) == pytest.approx(4.0)
    assert shared_step_s(calm(2.0), nodes=4, cores=2) == pytest.approx(4.0)


def test_redundant_work_takes_a_core_too() -> None:
    # Of 4 nodes' time half is useful, and a quarter redundant: the work of 3 nodes.
    step = calm(1.0, bubble=0.5, redundant=0.25)
    assert shared_step_s(step, nodes=4, cores=2) == pytest.approx(1.5)


@given(bubble=shares, redundant=shares, nodes=st.integers(1, 64), cores=st.integers(1, 64))
def test_never_shorter_than_calm_and_never_longer_with_more_cores(
    bubble: float, redundant: float, nodes: int, cores: int
) -> None:
    step = calm(0.5, bubble=bubble, redundant=min(redundant, bubble))
    found = shared_step_s(step, nodes=nodes, cores=cores)
    assert found >= 0.5
    assert shared_step_s(step, nodes=nodes, cores=cores + 1) <= found
    if cores >= nodes:
        assert found == pytest.approx(0.5)
