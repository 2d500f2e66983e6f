"""What a calm step becomes where processes share cores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.planner.cost import Expected, shared_step_s

weights = st.lists(st.integers(0, 100), min_size=2, max_size=17).filter(any)


def calm(step_s: float, *busy: float) -> Expected:
    """A step of which `busy` are the shares with 0, 1, 2 ... nodes at work."""
    return Expected(
        source="given", step_s=step_s, samples_per_s=1.0, bubble=0.0, redundant=0.0, busy=busy
    )


def test_bubbles_are_filled_before_anything_takes_longer() -> None:
    half = calm(2.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    assert shared_step_s(half, cores=2) == 2.0
    assert shared_step_s(half, cores=1) == pytest.approx(4.0)
    assert shared_step_s(calm(2.0, 0.0, 0.0, 0.0, 0.0, 1.0), cores=2) == pytest.approx(4.0)


def test_where_a_pipeline_fills_and_drains_a_core_is_idle() -> None:
    # All of the work on both cores would take 2.5 s; one node alone has none to share.
    step = calm(2.0, 0.0, 0.5, 0.0, 0.0, 0.5)
    assert shared_step_s(step, cores=2) == pytest.approx(3.0)


@given(weights, st.integers(1, 64))
def test_never_shorter_than_calm_or_its_work_and_never_longer_with_more_cores(
    parts: list[int], cores: int
) -> None:
    shares = [part / sum(parts) for part in parts]
    step = calm(0.5, *shares)
    found = shared_step_s(step, cores=cores)
    work_s = 0.5 * sum(nodes * share for nodes, share in enumerate(shares))
    assert found >= 0.5 - 1e-9
    assert found >= work_s / cores - 1e-9
    assert shared_step_s(step, cores=cores + 1) <= found + 1e-9
    if cores >= len(parts) - 1:
        assert found == pytest.approx(0.5)
