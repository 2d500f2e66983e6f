"""What is known of an assignment is the same whether it was corrected or is worked out anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.errors import CoreMisuse
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.roles import Roles
from bamboo.topology.slots import Slot
from tests.topology.test_assignment import assignments, nodes


def known(roles: Roles) -> tuple[object, ...]:
    return roles.owned, roles.shadowed, roles.several, roles.landless, roles.astray, len(roles)


@given(assignments(), st.data())
def test_roles_are_corrected_as_they_would_be_found(
    assignment: Assignment, data: st.DataObject
) -> None:
    slot = st.sampled_from(assignment.grid.slots())
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            assert assignment.roles.grid == assignment.grid  # asked for, so it is handed on
        assignment = assignment.replace(
            owners=data.draw(st.dictionaries(slot, nodes, max_size=3)),
            shadows=data.draw(st.dictionaries(slot, st.none() | nodes, max_size=3)),
        )
        anew = Roles.of(assignment.grid, assignment.owners, assignment.shadows)
        assert known(assignment.roles) == known(anew)
    roles, everybody = assignment.roles, {*assignment.owners, *assignment.shadows} - {None}
    assert {node for node in everybody if node is not None and roles.has(node)} == everybody
    assert len(roles) == len(everybody)
    assert assignment.members() == everybody


@given(assignments())
def test_astray_is_what_the_ring_does_not_protect(assignment: Assignment) -> None:
    grid, slots = assignment.grid, assignment.grid.slots()
    for number, slot in enumerate(slots):
        ahead = assignment.owner(grid.protector(slot))
        in_order = assignment.shadow(slot) == ahead != assignment.owner(slot)
        assert (number in assignment.roles.astray) is not in_order
        assert grid.number(slot) == number
        assert slots[grid.before(number)] == grid.protector(slot)
        assert slots[grid.after(number)] == grid.protected(slot)


def test_what_is_known_is_no_part_of_the_value() -> None:
    grid = Grid(pipelines=1, stages=2)
    one, other = (Assignment(grid=grid, owners=("a", "b"), shadows=("b", "a")) for _ in range(2))
    assert one.members() == {"a", "b"}
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)
    assert one.replace(owners={}, shadows={}) is one


def test_a_slot_of_another_grid_is_a_mistake() -> None:
    with pytest.raises(CoreMisuse, match=r"slot 0\.2 is none of the grid 1 x 2"):
        Grid(pipelines=1, stages=2).number(Slot(pipeline=0, stage=2))
