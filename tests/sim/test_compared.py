"""Runs are compared over the same work or the same time, or not at all, and then it is said why."""

import math

import pytest

from bamboo.sim.compared import no_ratio, why_no_ratio
from bamboo.sim.run import Figures, simulate
from bamboo.sim.ways import CHECKPOINT_RESTART, ON_DEMAND, OURS
from tests.sim.worlds import asked, trace

FOUR = "0 +a b c d"
GONE = (FOUR, "600 -a b c d")


def _played(*market: str, last_step: float = math.inf) -> dict[str, Figures]:
    one = asked(every=5, park_s=100.0, last_step=last_step)
    names = (OURS, CHECKPOINT_RESTART, ON_DEMAND)
    return {name: simulate(one, trace(*market), system=name) for name in names}


def test_a_parked_run_is_compared_with_none_that_went_on() -> None:
    found = _played(*GONE)
    assert found[OURS].seconds < 800 < found[ON_DEMAND].seconds == 3600
    for name in (CHECKPOINT_RESTART, ON_DEMAND):
        why = why_no_ratio(found[OURS], found[name], last_step=math.inf)
        assert why.startswith("bamboo ended after 0.19")
        assert "cluster.park_s" in why
    assert no_ratio([found], OURS, ours=OURS, last_step=math.inf) == ""


@pytest.mark.parametrize("last_step", [math.inf, 100.0])
def test_the_same_time_and_the_same_work_are_compared(last_step: float) -> None:
    found = _played(FOUR, last_step=last_step)
    assert why_no_ratio(found[OURS], found[ON_DEMAND], last_step=last_step) == ""


def test_one_that_is_not_done_is_not_compared_with_one_that_is() -> None:
    found = _played(*GONE, last_step=1000.0)
    why = why_no_ratio(found[ON_DEMAND], found[CHECKPOINT_RESTART], last_step=1000.0)
    assert why.startswith("it did ")
    assert "of the 1,000 steps by the end" in why


def test_over_many_seeds_it_is_said_in_how_many() -> None:
    found = [_played(*GONE), _played(FOUR)]
    why = no_ratio(found, ON_DEMAND, ours=OURS, last_step=math.inf)
    assert why.startswith("in 1 of 2 runs: bamboo ended after")
