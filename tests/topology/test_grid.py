"""Slots and the grid: every slot once, and protection is a ring along each pipeline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot

grids = st.builds(lambda d, p: Grid(pipelines=d, stages=p), st.integers(1, 6), st.integers(1, 9))


@given(st.integers(0, 500), st.integers(0, 500))
def test_a_slot_reads_what_it_prints(pipeline: int, stage: int) -> None:
    slot = Slot(pipeline=pipeline, stage=stage)
    assert Slot.parse(str(slot)) == slot


@pytest.mark.parametrize("text", ["", "1", "1.", "a.b", "1.2.3"])
def test_what_is_no_slot_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Slot.parse(text)


@pytest.mark.parametrize(("pipelines", "stages"), [(0, 4), (0, 1), (-1, 2), (1, 0)])
def test_a_grid_that_is_none_is_refused(pipelines: int, stages: int) -> None:
    with pytest.raises(ValueError, match="D >= 1 and P >= 1"):
        Grid(pipelines=pipelines, stages=stages)


@given(grids)
def test_slots_are_all_of_the_grid_in_order(grid: Grid) -> None:
    slots = grid.slots()
    assert len(slots) == len(set(slots)) == grid.size == grid.pipelines * grid.stages
    assert list(slots) == sorted(slots)
    assert [s for d in range(grid.pipelines) for s in grid.pipeline(d)] == list(slots)
    assert {s for p in range(grid.stages) for s in grid.column(p)} == set(slots)


@given(grids)
def test_protection_is_one_ring_along_each_pipeline(grid: Grid) -> None:
    for slot in grid.slots():
        protector = grid.protector(slot)
        assert (protector == slot) is (grid.stages == 1)
        assert protector.pipeline == slot.pipeline
        assert grid.protected(protector) == slot
        seen = [slot]
        while (following := grid.protected(seen[-1])) != slot:
            seen.append(following)
        assert sorted(seen) == list(grid.pipeline(slot.pipeline))


def test_the_last_node_shadows_stage_0() -> None:
    grid = Grid(pipelines=1, stages=4)
    assert grid.protector(Slot(pipeline=0, stage=0)) == Slot(pipeline=0, stage=3)
    assert grid.protector(Slot(pipeline=0, stage=2)) == Slot(pipeline=0, stage=1)
