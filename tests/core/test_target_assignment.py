"""The target assignment is the one found by looking at everything, whoever has what."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bamboo.core.protect import aim
from bamboo.core.state import NodeStatus
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from tests.core.build import apply, forming, joined
from tests.core.plain_aim import plain_aim


@given(
    data=st.data(),
    pipelines=st.integers(1, 2),
    stages=st.integers(2, 4),
    redundancy=st.sampled_from(["stash", "stash", "peer"]),
    apart=st.booleans(),
)
def test_it_is_found_from_any_assignment(
    data: st.DataObject, pipelines: int, stages: int, redundancy: str, apart: bool
) -> None:
    grid = Grid(pipelines=pipelines, stages=stages)
    state = forming(1, 7, redundancy)
    for number in range(data.draw(st.integers(2, 6))):
        state = apply(state, joined(f"n{number}", data.draw(st.sampled_from("ab")))).state
    names = [node.id for node in state.nodes]
    any_of = st.sampled_from(names)
    owners = tuple(data.draw(any_of) for _ in range(grid.size))
    shadows: list[NodeId | None] = [None] * grid.size
    if redundancy == "stash":
        drawn = (data.draw(st.none() | any_of) for _ in owners)
        shadows = [one if one != own else None for one, own in zip(drawn, owners, strict=True)]
    assignment = Assignment(grid=grid, owners=owners, shadows=tuple(shadows))
    told = data.draw(st.sets(any_of, max_size=2))
    advised = data.draw(st.sets(any_of, max_size=1))
    nodes = (
        replace(
            node,
            status=NodeStatus.MEMBER if node.id in assignment.members() else NodeStatus.READY,
            notice_deadline_s=9.0 if node.id in told else None,
            advised=node.id in advised,
        )
        for node in state.nodes
    )
    retiring = data.draw(st.none() | any_of)
    state = replace(state, grid=grid, assignment=assignment, nodes=tuple(nodes), retiring=retiring)
    assert aim(state, apart=apart) == plain_aim(state, apart=apart)
