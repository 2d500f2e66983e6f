"""What a calm step becomes where processes share cores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.planner.step.step_time import longer_on

weights = st.lists(st.integers(0, 100), min_size=2, max_size=17).filter(any)


def test_bubbles_are_filled_before_anything_takes_longer() -> None:
    half = (0.0, 0.0, 1.0, 0.0, 0.0)
    assert longer_on(half, cores=2) == 1.0
    assert longer_on(half, cores=1) == pytest.approx(2.0)
    assert longer_on((0.0, 0.0, 0.0, 0.0, 1.0), cores=2) == pytest.approx(2.0)


def test_where_a_pipeline_fills_and_drains_a_core_is_idle() -> None:
    # All of the work on both cores would take 1.25 times as long; one node alone has none to share.
    assert longer_on((0.0, 0.5, 0.0, 0.0, 0.5), cores=2) == pytest.approx(1.5)


@given(weights, st.integers(1, 64))
def test_never_shorter_than_calm_or_its_work_and_never_longer_with_more_cores(
    parts: list[int], cores: int
) -> None:
    shares = [part / sum(parts) for part in parts]
    found = longer_on(shares, cores=cores)
    work = sum(nodes * share for nodes, share in enumerate(shares))
    assert found >= 1 - 1e-9
    assert found >= work / cores - 1e-9
    assert longer_on(shares, cores=cores + 1) <= found + 1e-9
    if cores >= len(parts) - 1:
        assert found == pytest.approx(1.0)
