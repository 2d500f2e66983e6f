"""States that are made of others."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.core.state import Node, Nodes, NodeStatus, Phase, State
from bamboo.ids import InstanceId, NodeId, ZoneId
from tests.core.build import running


def test_a_state_with_other_values_is_the_one_that_replace_gives() -> None:
    state = running()
    nodes = tuple(replace(node, advised=True) for node in state.nodes)
    after = state.having(phase=Phase.DEGRADED, nodes=nodes, sentence="other")
    assert after == replace(state, phase=Phase.DEGRADED, nodes=nodes, sentence="other")
    assert isinstance(after.nodes, Nodes)
    assert state == running()


def test_a_value_that_no_state_has_is_refused() -> None:
    with pytest.raises(KeyError):
        running().having(fase=Phase.DEGRADED)


def node(number: int, status: NodeStatus, deadline_s: float | None, advised: bool) -> Node:
    return Node(
        id=NodeId(f"n{number}"),
        instance=InstanceId(f"n{number}"),
        zone=ZoneId("ab"[number % 2]),
        endpoint="ipc:///x",
        pid=1,
        status=status,
        notice_deadline_s=deadline_s,
        advised=advised,
    )


a_node = st.builds(
    node,
    st.integers(0, 9),
    st.sampled_from(list(NodeStatus)),
    st.none() | st.just(9.0),
    st.booleans(),
)
some_nodes = st.lists(a_node, max_size=4, unique_by=lambda one: one.id)


def known(nodes: Nodes) -> tuple[object, ...]:
    return nodes.places, nodes.zones, nodes.live, nodes.usable, nodes.aside, nodes.advised


@given(some_nodes, st.lists(some_nodes, max_size=6))
def test_what_is_handed_on_is_what_is_found(first: list[Node], changes: list[list[Node]]) -> None:
    nodes, account = Nodes(first), {one.id: one for one in first}
    for changed in changes:
        nodes = nodes.having(*changed)
        account |= {one.id: one for one in changed}
        assert nodes == tuple(account.values())
        assert known(nodes) == known(Nodes(account.values()))
        assert nodes.usable <= nodes.live
        assert {one.id for one in nodes.aside} <= nodes.live


def test_a_state_finds_its_nodes_whatever_they_were_given_as() -> None:
    state: State = running()
    first = state.nodes[0]
    gone = replace(first, status=NodeStatus.GONE)
    for after in (
        state.with_nodes(gone),
        replace(state, nodes=(gone, *state.nodes[1:])),
    ):
        assert after.node(first.id) == gone
        assert after.node(NodeId("stranger")) is None
        assert first.id not in after.roll.live
        assert state.node(first.id) == first
    assert state.with_nodes() is state
