"""The assignment: who owns and who shadows, and what a replacement changes and leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout
from bamboo.topology.slots import Slot

nodes = st.integers(0, 9).map(lambda n: NodeId(f"i-{n}.0"))


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    grid = Grid(pipelines=draw(st.integers(1, 3)), stages=draw(st.integers(2, 5)))
    size = grid.size
    return Assignment(
        grid=grid,
        owners=tuple(draw(st.lists(nodes, min_size=size, max_size=size))),
        shadows=tuple(draw(st.lists(st.none() | nodes, min_size=size, max_size=size))),
    )


@given(assignments())
def test_the_views_agree(assignment: Assignment) -> None:
    slots = assignment.grid.slots()
    everyone = {n for n in (*assignment.owners, *assignment.shadows) if n is not None}
    assert assignment.members() == everyone
    for slot in slots:
        assert slot in assignment.owned_by(assignment.owner(slot))
        shadow = assignment.shadow(slot)
        assert shadow is None or slot in assignment.shadowed_by(shadow)
    assert sum(len(assignment.owned_by(node)) for node in everyone) == len(slots)
    unprotected = sum(assignment.shadow(slot) is None for slot in slots)
    assert sum(len(assignment.shadowed_by(n)) for n in everyone) == len(slots) - unprotected


@given(assignments(), st.data())
def test_a_replacement_changes_what_it_names_and_nothing_else(
    assignment: Assignment, data: st.DataObject
) -> None:
    slot = st.sampled_from(assignment.grid.slots())
    owners = data.draw(st.dictionaries(slot, nodes))
    shadows = data.draw(st.dictionaries(slot, st.none() | nodes))
    changed = assignment.replace(owners=owners, shadows=shadows)
    for each in assignment.grid.slots():
        assert changed.owner(each) == owners.get(each, assignment.owner(each))
        expected = shadows[each] if each in shadows else assignment.shadow(each)
        assert changed.shadow(each) == expected


def test_a_shadow_can_be_taken_away() -> None:
    grid = Grid(pipelines=1, stages=2)
    before = Assignment(
        grid=grid,
        owners=(NodeId("a.0"), NodeId("b.0")),
        shadows=(NodeId("b.0"), NodeId("a.0")),
    )
    after = before.replace(owners={}, shadows={Slot(pipeline=0, stage=1): None})
    assert after.shadows == (NodeId("b.0"), None)


@pytest.mark.parametrize(("owners", "shadows"), [(1, 2), (2, 1), (3, 3), (0, 0)])
def test_a_count_that_is_not_the_grids_is_refused(owners: int, shadows: int) -> None:
    with pytest.raises(ValueError, match="for each slot"):
        Assignment(
            grid=Grid(pipelines=1, stages=2),
            owners=(NodeId("a.0"),) * owners,
            shadows=(None,) * shadows,
        )


def test_layers_of_a_slot_are_those_of_its_stage() -> None:
    layout = ModelLayout(grid=Grid(pipelines=1, stages=2), cut=(0, 6, 12), shares=(4,))
    assert list(layout.layers_of(Slot(pipeline=0, stage=1))) == list(range(6, 12))
