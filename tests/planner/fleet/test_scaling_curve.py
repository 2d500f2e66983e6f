"""Centres that outliers do not move, and a curve that goes through what is known."""

import math
import random

import pytest

from bamboo.planner.fleet.scaling_curve import LEAST, MOST, centre, curve_of


def test_a_centre_withstands_outliers() -> None:
    chance = random.Random(3)
    times_s = [1 + chance.gauss(0, 0.02) for _ in range(40)] + [30.0] * 5 + [math.nan, 0.0]
    found = centre(times_s)
    assert found is not None
    assert found.step_s == pytest.approx(1.0, abs=0.01)
    assert found.count == 45
    assert 0.002 < found.error < 0.006


def test_no_times_have_no_centre() -> None:
    assert centre([]) is None
    assert centre([math.nan, 0.0, -1.0, math.inf]) is None


def test_how_many_times_are_enough() -> None:
    def enough(*times_s: float) -> bool:
        found = centre(times_s)
        assert found is not None
        return found.enough

    rough = [1.0, 1.3, 1.6, 1.9] * (MOST // 4)
    assert enough(*[1.0] * LEAST)
    assert not enough(*[1.0] * (LEAST - 1))
    assert enough(*rough)
    assert not enough(*rough[1:])


@pytest.mark.parametrize("terms", [(0.3, 1.0, 0.0), (0.0, 2.0, 0.01), (0.1, 1.5, 0.02)])
def test_it_finds_the_curve_that_it_assumes(terms: tuple[float, float, float]) -> None:
    def step_s(k: int) -> float:
        return terms[0] + terms[1] / k + terms[2] * k

    centres = {k: centre([step_s(k)] * LEAST) for k in (2, 5, 11)}
    found = curve_of({k: one for k, one in centres.items() if one is not None})
    assert found is not None
    assert found.terms == pytest.approx(terms, abs=1e-9)
    assert all(found.step_s(k) == pytest.approx(step_s(k)) for k in range(1, 40))


def test_without_noise_it_goes_through_what_was_seen_whatever_that_is() -> None:
    times_s = {1: 1.0, 2: 0.4, 3: 0.7, 8: 0.1, 16: 0.9}
    centres = {k: centre([took_s] * LEAST) for k, took_s in times_s.items()}
    found = curve_of({k: one for k, one in centres.items() if one is not None})
    assert found is not None
    for k, took_s in times_s.items():
        assert found.step_s(k) == pytest.approx(took_s)
    assert all(found.step_s(k) > 0 for k in range(1, 40))


def test_with_noise_it_goes_between_what_was_seen() -> None:
    """Times that lie off the curve by chance, as often above as below."""
    chance = random.Random(7)
    centres = {}
    for k in (1, 2, 4, 8, 16):
        one = centre([(0.2 + 1 / k) * math.exp(chance.gauss(0, 0.03)) for _ in range(MOST)])
        assert one is not None
        centres[k] = one
    found = curve_of(centres)
    assert found is not None
    for k in range(1, 17):
        assert found.step_s(k) == pytest.approx(0.2 + 1 / k, rel=0.01)


def test_of_one_size_nothing_follows() -> None:
    one = centre([1.0] * LEAST)
    assert one is not None
    assert curve_of({}) is None
    assert curve_of({4: one}) is None
