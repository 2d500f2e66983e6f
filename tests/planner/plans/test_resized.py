"""Other microbatches of a plan: which would be faster, what they hold, and that nothing is free."""

from dataclasses import replace

import pytest

from bamboo.planner.plans.candidates import Room
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.ranking import Candidate, ranked
from bamboo.planner.plans.resized import Resized, least_operation_s, resized, worth_a_word
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.hazards import said
from bamboo.topology.grid import Grid
from tests.planner.workloads import stakes, workload

GRID = Grid(pipelines=1, stages=4)
HAZARD = Hazard(stakes=stakes(), rate=said(0.5))
ROOM = Room(memory_bytes=1 << 34, nodes=range(4, 5), grids=(GRID,), modes=("stash",))


def found(
    work: WorkloadFigures, *, operation_s: float = 0.0, memory_bytes: int = 1 << 34
) -> tuple[Candidate, tuple[Resized, ...]]:
    (taken,) = ranked(work, replace(ROOM, microbatches=(work.microbatch,)), HAZARD, most=1)
    room = replace(ROOM, operation_s=operation_s, memory_bytes=memory_bytes)
    told: list[tuple[int, int]] = []
    sizes = resized(work, taken, room, HAZARD, told=lambda done, of: told.append((done, of)))
    assert told[-1][0] == told[-1][1]
    return taken, sizes


def test_smaller_ones_have_smaller_bubbles_and_hold_less() -> None:
    taken, sizes = found(workload())
    assert {one.microbatch for one in sizes} == {8, 4, 1}, "divisors of a virtual node, its own not"
    best = worth_a_word(sizes)
    assert best is sizes[0]
    assert best is not None
    assert best.microbatch == 1
    assert best.faster == pytest.approx(taken.step_s / best.step_s - 1)
    assert best.faster > 0.1
    assert best.less_bytes == taken.choice.most_bytes - best.most_bytes > 0
    assert [one.step_s for one in sizes] == sorted(one.step_s for one in sizes)


def test_where_an_operation_takes_its_time_however_small_larger_ones_are_faster() -> None:
    work = workload()
    fixed_s = least_operation_s(work, given=True)
    assert fixed_s == max(work.backward_s)
    assert least_operation_s(work, given=False) == min(work.forward_s)
    _, sizes = found(work, operation_s=fixed_s)
    assert sizes[-1].microbatch == 1
    assert sizes[-1].faster < 0


def test_a_size_that_does_not_fit_is_none_and_none_faster_is_said_by_none() -> None:
    work = workload()
    _, sizes = found(work)
    largest = next(one for one in sizes if one.microbatch == 8)
    _, fewer = found(work, memory_bytes=largest.most_bytes - 1)
    assert {one.microbatch for one in fewer} == {4, 1}
    assert worth_a_word(()) is None
    assert worth_a_word((replace(sizes[0], faster=0.001),)) is None
