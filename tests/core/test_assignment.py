"""Slots go by zone and id, in whole pipelines where a zone can hold one."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.core.layout import assign
from bamboo.core.state import Node, NodeStatus
from bamboo.errors import CoreMisuse
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.topology.grid import Grid


def node(name: str, zone: str) -> Node:
    return Node(
        id=NodeId(name),
        instance=InstanceId(name),
        zone=ZoneId(zone),
        endpoint="ipc:///x",
        pid=1,
        status=NodeStatus.READY,
    )


def by_pipeline(text: str, grid: Grid) -> list[str]:
    """Owners of each pipeline for nodes such as `a1 b1 a2`: zone, then number."""
    nodes = [node(name, name[0]) for name in text.split()]
    assignment = assign(nodes, grid, "stash")
    return [
        " ".join(assignment.owner(slot) for slot in grid.pipeline(d)) for d in range(grid.pipelines)
    ]


@pytest.mark.parametrize(
    ("nodes", "pipelines"),
    [
        ("a1 a2 b1 b2", ["a1 a2", "b1 b2"]),
        ("b2 a2 b1 a1", ["a1 a2", "b1 b2"]),
        # a has one too many for a pipeline, so it is the rest that crosses zones.
        ("a1 a2 a3 b1", ["a1 a2", "a3 b1"]),
        ("a1 b1 b2 b3", ["b1 b2", "a1 b3"]),
        ("a1 b1 b2 c1", ["b1 b2", "a1 c1"]),
        ("a1 b1 c1 d1", ["a1 b1", "c1 d1"]),
        # Nodes that are not needed get nothing.
        ("a1 b1 c1 c2 d1", ["c1 c2", "a1 b1"]),
    ],
)
def test_pipelines_stay_within_zones(nodes: str, pipelines: list[str]) -> None:
    assert by_pipeline(nodes, Grid(pipelines=2, stages=2)) == pipelines


def test_order_of_joining_does_not_matter() -> None:
    nodes = [node(name, name[0]) for name in ("a1", "b1", "b2", "c1")]
    grid = Grid(pipelines=2, stages=2)
    assert len({assign(order, grid, "stash") for order in permutations(nodes)}) == 1


def test_shadow_is_the_owner_of_the_protector() -> None:
    grid = Grid(pipelines=2, stages=3)
    nodes = [node(f"n{i}", "z") for i in range(6)]
    assignment = assign(nodes, grid, "eager")
    for slot in grid.slots():
        assert assignment.shadow(slot) == assignment.owner(grid.protector(slot))
    assert assign(nodes, grid, "off").shadows == (None,) * 6


def test_too_few_nodes_are_a_mistake() -> None:
    with pytest.raises(CoreMisuse, match="3 nodes cannot fill 4 slots"):
        assign([node(f"n{i}", "z") for i in range(3)], Grid(pipelines=1, stages=4), "off")


@given(
    zones=st.lists(st.sampled_from("abc"), min_size=12, max_size=15),
    stages=st.sampled_from([2, 3, 4, 6]),
)
def test_as_many_whole_pipelines_as_the_zones_allow(zones: list[str], stages: int) -> None:
    grid = Grid(pipelines=12 // stages, stages=stages)
    nodes = [node(f"n{index:02}", zone) for index, zone in enumerate(zones)]
    assignment = assign(nodes, grid, "stash")
    assert len(set(assignment.owners)) == grid.size
    zone_of = {entry.id: entry.zone for entry in nodes}
    whole = sum(
        len({zone_of[assignment.owner(slot)] for slot in grid.pipeline(d)}) == 1
        for d in range(grid.pipelines)
    )
    possible = sum(zones.count(zone) // stages for zone in "abc")
    assert whole >= min(possible, grid.pipelines)
