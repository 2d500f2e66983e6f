"""How long an evaluation takes, and what it adds to a step."""

from dataclasses import replace

import pytest

from bamboo.planner.layers.memory import memory_report
from bamboo.planner.profiles.workload import with_microbatch
from bamboo.planner.step.cost import expected
from bamboo.planner.step.evaluation import evaluation_s
from bamboo.planner.step.step_time import StepTimes
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from tests.planner.workloads import F_S, workload

FOUR = Grid(pipelines=1, stages=4)
SHARES = equal_shares(2, 1)
PLAIN = workload()
WORK = replace(PLAIN, shape=replace(PLAIN.shape, evaluated=12), eval_every=10)
CUT = PLAIN.cut(4)


def test_it_fills_the_pipeline_once_and_then_follows_the_slowest_stage() -> None:
    assert evaluation_s(WORK, CUT, FOUR, SHARES) == pytest.approx((4 + 11) * 2 * F_S)
    uneven = (0, 1, 2, 3, 8)
    assert evaluation_s(WORK, uneven, FOUR, SHARES) == pytest.approx((8 + 11 * 5) * F_S)
    two = Grid(pipelines=2, stages=4)
    assert evaluation_s(WORK, CUT, two, equal_shares(2, 2)) == pytest.approx((4 + 5) * 2 * F_S)
    one = Grid(pipelines=1, stages=1)
    assert evaluation_s(WORK, (0, 8), one, SHARES) == pytest.approx(12 * 8 * F_S)
    slow = replace(WORK, latency_s=0.5, bytes_per_s=128 / 0.1)
    assert evaluation_s(slow, CUT, FOUR, SHARES) == pytest.approx(8 * F_S + 3 * 0.6 + 11 * 0.1)
    shared = replace(WORK, cores=1.0)
    assert evaluation_s(shared, CUT, FOUR, SHARES) == pytest.approx(12 * 8 * F_S)
    assert evaluation_s(PLAIN, CUT, FOUR, SHARES) == 0.0


def test_each_step_has_its_share_of_it_and_no_bubble_more() -> None:
    bare, with_it = (expected(work, FOUR, "stash") for work in (PLAIN, WORK))
    share_s = evaluation_s(WORK, CUT, FOUR, SHARES) / 10
    assert with_it.step_s == pytest.approx(bare.step_s + share_s)
    assert StepTimes(WORK, "stash").calm_s(FOUR, SHARES) == with_it.step_s
    assert with_it.bubble * with_it.step_s == pytest.approx(bare.bubble * bare.step_s)


def test_smaller_microbatches_are_more() -> None:
    assert with_microbatch(WORK, 1).shape.evaluated == 24


def test_what_passes_between_stages_is_kept_to_its_end() -> None:
    """Beside one step of 8 microbatches: no more than two steps where it has 8 or fewer."""
    stash = {
        evaluated: memory_report(
            PLAIN.layers,
            cut=CUT,
            grid=FOUR,
            shape=replace(PLAIN.shape, evaluated=evaluated),
            mode="stash",
        )[1].stash
        for evaluated in (0, 8, 12)
    }
    assert stash[0] == stash[8] > 0
    assert stash[12] * 16 == stash[0] * 20
