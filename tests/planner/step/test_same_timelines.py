"""A dry run is exact to the nanosecond, however it is worked out."""

import random

import pytest

from bamboo.planner.step.dry_run import DryRun, dry_run
from bamboo.planner.step.layout import Costs, layout_of
from bamboo.topology.grid import Grid
from tests.planner.step.random_runs import digest, random_costs, random_layout, words
from tests.schedule.golden import check_golden

SEEDS, MANY = 24, 400


def test_all_times_are_those_that_a_plain_event_for_each_operation_gave() -> None:
    """The golden was written by an event loop that knew no other way, keyed by slots."""
    check_golden("timelines.txt", "".join(f"{seed} {digest(seed)}\n" for seed in range(SEEDS)))


@pytest.mark.full
def test_all_times_of_many_runs_are_those_of_a_plain_event_for_each_operation() -> None:
    many = "".join(f"{seed} {digest(seed)}\n" for seed in range(SEEDS, MANY))
    check_golden("timelines_many.txt", many)


@pytest.mark.parametrize("seed", range(40))
def test_nodes_of_fixed_order_are_worked_out_to_what_their_events_would_be(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"fixed order {seed}")
    layout = random_layout(chance)
    costs = random_costs(layout, chance)
    worked_out = dry_run(layout, costs, steps=3)
    monkeypatch.setattr(DryRun, "MAY_WORK_OUT", False)
    assert words(worked_out) == words(dry_run(layout, costs, steps=3))


def test_a_calm_pipeline_is_worked_out_without_an_event_for_each_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thirty stages and 128 microbatches are 15,480 operations; events are those of the ends of
    programs and the squares."""
    layout = layout_of(Grid(pipelines=1, stages=30), microbatches=[128], mode="off")
    costs = Costs.of(30, forward_s=[0.05], backward_s=[0.1], latency_s=0.001)
    run = DryRun(layout, costs, 2, {})
    moments = 0
    plain = run._links.next_moment

    def counted() -> object:
        nonlocal moments
        moments += 1
        return plain()

    monkeypatch.setattr(run._links, "next_moment", counted)
    assert len(run.run().ran) == 15_480
    assert moments < 1_000
