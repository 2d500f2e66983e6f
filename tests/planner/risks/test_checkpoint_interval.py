"""The interval between checkpoints that loses the least: against Young's term, and by trying."""

from math import exp, expm1, inf, sqrt

import pytest

from bamboo.errors import CoreMisuse
from bamboo.planner.risks.checkpoint_interval import best_interval_s, best_interval_steps


def _whole_s(interval_s: float, cost_s: float, between_s: float) -> float:
    """Expected time per second of work, without the restart, which hangs on no interval (Daly's
    equation 13, losses of a Poisson process)."""
    return between_s * expm1((interval_s + cost_s) / between_s) / interval_s


@pytest.mark.parametrize("between_s", [300.0, 3600.0, 1e6])
@pytest.mark.parametrize("cost_s", [0.1, 5.0, 60.0])
def test_no_other_interval_loses_less(cost_s: float, between_s: float) -> None:
    best = best_interval_s(cost_s=cost_s, between_losses_s=between_s)
    least = _whole_s(best, cost_s, between_s)
    others = (best * exp(n / 10) for n in range(-30, 31))
    assert all(_whole_s(other, cost_s, between_s) > 0.999 * least for other in others)


def test_rare_losses_leave_youngs_term() -> None:
    found = best_interval_s(cost_s=2.0, between_losses_s=1e8)
    assert found == pytest.approx(sqrt(2 * 2.0 * 1e8), rel=1e-3)


def test_what_costs_nothing_is_taken_at_every_step_and_what_is_never_lost_never() -> None:
    assert best_interval_s(cost_s=0.0, between_losses_s=60.0) == 0.0
    assert best_interval_steps(cost_s=0.0, between_losses_s=60.0, step_s=2.0) == 1
    assert best_interval_s(cost_s=1.0, between_losses_s=inf) == inf
    assert best_interval_steps(cost_s=1.0, between_losses_s=inf, step_s=2.0) == 0
    assert best_interval_s(cost_s=500.0, between_losses_s=100.0) == 100.0


@pytest.mark.parametrize(("cost_s", "between_s"), [(-1.0, 60.0), (1.0, 0.0), (1.0, float("nan"))])
def test_figures_that_are_none_are_refused(cost_s: float, between_s: float) -> None:
    with pytest.raises(CoreMisuse, match="has no best interval"):
        best_interval_s(cost_s=cost_s, between_losses_s=between_s)
