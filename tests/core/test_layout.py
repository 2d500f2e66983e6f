"""Places in a new layout: the best fits first, the rest by zone."""

from hypothesis import given
from hypothesis import strategies as st

from bamboo.core.layout import grid_for, layout_for, nodes_wanted, place
from bamboo.core.state import GridTime, Node, NodeStatus, Policy
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout, equal_shares
from tests.core.plain_aim import plain_places, plain_shadow

CUT = (0, 2, 3, 7, 8)
"""Stages of unequal length, so that holding one layer more or less makes a difference."""


def node(number: int, zone: str) -> Node:
    return Node(
        id=NodeId(f"n{number:02}"),
        instance=InstanceId(f"n{number:02}"),
        zone=ZoneId(zone),
        endpoint="ipc:///x",
        pid=1,
        status=NodeStatus.MEMBER,
    )


@given(st.data(), st.integers(1, 3), st.booleans())
def test_everybody_is_placed_as_by_comparing_each_with_each(
    data: st.DataObject, pipelines: int, apart: bool
) -> None:
    grid = Grid(pipelines=pipelines, stages=len(CUT) - 1)
    layout = ModelLayout(grid=grid, cut=CUT, shares=equal_shares(4, pipelines))
    zones = data.draw(st.lists(st.sampled_from("abc"), min_size=grid.size, max_size=grid.size + 3))
    order = data.draw(st.permutations(range(len(zones))))
    nodes = [node(number, zone) for number, zone in zip(order, zones, strict=True)]
    holders = data.draw(st.sets(st.sampled_from([n.id for n in nodes])))
    some = st.frozensets(st.integers(0, CUT[-1] - 1))
    held = {holder: data.draw(some) for holder in sorted(holders)}
    found = place(nodes, layout, held, "stash", apart=apart)
    assert found.owners == plain_places(nodes, layout, held, apart=apart)
    usable = {n.id for n in nodes}
    by_zone = {n.id: n.zone for n in nodes} if apart else None
    bare = found.replace(owners={}, shadows=dict.fromkeys(grid.slots()))
    for slot in grid.slots():
        assert found.shadow(slot) == plain_shadow(bare, slot, usable, by_zone)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(2, 5), st.integers(1, 6))
def test_the_grid_is_that_of_the_layout(
    nodes: int, pipelines: int, stages: int, virtual_nodes: int
) -> None:
    cuts = tuple(tuple(range(number + 1)) for number in range(2, stages + 1))
    policy = Policy(cuts=cuts, virtual_nodes=virtual_nodes, pipelines=pipelines, stages=stages)
    layout = layout_for(nodes, policy)
    assert layout.grid == grid_for(nodes, policy)
    assert layout.grid.size <= max(nodes, 2)
    assert layout.grid.stages == max(2, min(nodes, stages))


def test_more_nodes_are_wanted_for_whole_pipelines_and_to_stand_by_only() -> None:
    policy = Policy(cuts=((0, 1, 2), (0, 1, 2, 3)), virtual_nodes=2, pipelines=2, stages=3)
    assert [nodes_wanted(n, policy, standbys=1) for n in range(2, 10)] == [2, 3, 4, 4, 6, 7, 7, 7]
    assert [nodes_wanted(n, policy, standbys=0) for n in range(2, 10)] == [2, 3, 3, 3, 6, 6, 6, 6]


def test_the_fastest_grid_is_taken_and_of_equals_the_one_with_fewer_nodes() -> None:
    grids = tuple(
        GridTime(pipelines=p, stages=s, step_s=t)
        for p, s, t in ((2, 3, 1.0), (1, 3, 1.5), (1, 2, 1.5), (3, 2, 1.0), (2, 2, 1.0))
    )
    policy = Policy(cuts=((0, 1, 2), (0, 1, 2, 3)), pipelines=3, stages=3, grids=grids)
    found = [(grid.pipelines, grid.stages) for grid in (grid_for(n, policy) for n in range(1, 9))]
    assert found == [(1, 2), (1, 2), (1, 2), (2, 2), (2, 2), (2, 2), (2, 2), (2, 2)]
