"""Figures over seeds."""

import pytest

from bamboo.sim.report import spread


def test_a_spread_of_known_figures() -> None:
    one = spread([4.0, 1.0, 3.0, 2.0])
    assert (one.mean, one.p50) == (2.5, 2.5)
    assert one.p90 == pytest.approx(3.7)
    assert one.confidence == pytest.approx(1.96 * (5 / 3) ** 0.5 / 2)
    assert spread([7.0]).confidence == 0.0
    with pytest.raises(ValueError, match="nothing"):
        spread([])
