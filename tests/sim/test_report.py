"""Figures over seeds."""

from statistics import stdev

import pytest

from bamboo.sim.report import spread


def test_a_spread_of_known_figures() -> None:
    one = spread([4.0, 1.0, 3.0, 2.0])
    assert (one.mean, one.p50) == (2.5, 2.5)
    assert one.p90 == pytest.approx(3.7)
    assert one.confidence == pytest.approx(3.182 * (5 / 3) ** 0.5 / 2)
    assert spread([7.0]).confidence == 0.0
    with pytest.raises(ValueError, match="nothing"):
        spread([])


@pytest.mark.parametrize(("count", "t95"), [(2, 12.706), (31, 2.042), (32, 2.040), (101, 1.984)])
def test_few_seeds_are_less_sure_than_the_normal_distribution_has_it(
    count: int, t95: float
) -> None:
    """Against tables of Student's t."""
    figures = [0.0, 1.0] * (count // 2) + [0.5] * (count % 2)
    errors = spread(figures).confidence / (stdev(figures) / count**0.5)
    assert errors == pytest.approx(t95, abs=2e-3)
