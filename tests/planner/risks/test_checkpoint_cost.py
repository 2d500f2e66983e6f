"""What a checkpoint costs, and the interval that a plan gives a run which leaves it open."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.planner.risks.checkpoint_cost import (
    AUTO_LEAST_S,
    COPY_BYTES_PER_S,
    LONGEST_S,
    PAUSE_S,
    Shards,
    steps_between,
)

SHARDS = Shards(stage_bytes=(1e8, 3e8), store_bytes_per_s=1e8)
STEPS = 10_000_000


def between(shards: Shards = SHARDS, *, step_s: float = 1.0, steps: int = STEPS,
            fatal_per_hour: float = 0.5, usd_per_hour: float = 4.0) -> int:  # fmt: skip
    return steps_between(
        shards,
        step_s=step_s,
        steps=steps,
        fatal_per_hour=fatal_per_hour,
        usd_per_hour=usd_per_hour,
    )


def test_training_waits_for_the_copy_of_the_largest_stage() -> None:
    assert SHARDS.cost_s == pytest.approx(PAUSE_S + 3e8 / COPY_BYTES_PER_S)
    assert SHARDS.written_s == 3.0
    assert Shards(stage_bytes=(1e9,)).written_s == 0.0


def test_a_run_of_five_minutes_has_none_and_one_of_a_step_more_has() -> None:
    assert between(steps=int(AUTO_LEAST_S)) == 0
    assert between(steps=int(AUTO_LEAST_S) + 1) > 0


def test_no_more_than_an_hour_lies_between_two_though_nothing_is_ever_lost() -> None:
    assert between(step_s=2.0, fatal_per_hour=0.0) == LONGEST_S / 2
    assert between(step_s=5000.0) == 1


def test_one_stands_before_the_next_is_due() -> None:
    slow = replace(SHARDS, store_bytes_per_s=1e6)
    assert between(slow, step_s=7.0) == ceil(300 / 7)
    assert between(replace(slow, store_bytes_per_s=1e4)) == 30_000


def test_requests_that_are_paid_come_less_often_the_cheaper_the_instances_are() -> None:
    paid = replace(SHARDS, put_usd=5e-6)
    assert between() < between(paid) < between(paid, usd_per_hour=0.4)
    assert paid.usd == pytest.approx(5e-6 * (1 + 2 + 2 + 2 + 5 + 2))


@given(
    cost=st.floats(0.0, 1e10),
    step_s=st.floats(0.01, 20.0),
    fatal=st.floats(1e-3, 20.0),
    factor=st.sampled_from([0.5, 0.8, 1.25, 2.0]),
)
def test_no_other_interval_costs_less_where_no_bound_holds(
    cost: float, step_s: float, fatal: float, factor: float
) -> None:
    """Time that checkpoints take and that is done again, per second of work."""
    shards = Shards(stage_bytes=(cost,))
    found = between(shards, step_s=step_s, fatal_per_hour=fatal)

    def lost(steps: float) -> float:
        work_s = steps * step_s
        return shards.cost_s / work_s + fatal / 3600 * (work_s + shards.cost_s) / 2

    other = max(1, round(found * factor))
    if 1 < found < LONGEST_S / step_s - 1 and shards.cost_s < 360 / fatal:
        assert lost(other) > 0.97 * lost(found)
