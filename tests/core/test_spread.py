"""Neighbours in different zones: at the start, after losses, and in a new layout."""

from collections import Counter
from dataclasses import replace
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from bamboo.core.events import Event
from bamboo.core.invariants import check, check_step
from bamboo.core.layout import assign, place, shadow_of
from bamboo.core.machine import transition
from bamboo.core.state import Node, NodeStatus, Phase, Policy, State
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout
from bamboo.topology.strategy import SPREADS
from tests.core.build import forming, joined, lost
from tests.core.test_protect import ROUNDS, pending

APART = Policy(suspect_s=1.0, gone_s=3.0, spread="neighbours")


def node(name: str) -> Node:
    """A node such as `a1`: zone, then number."""
    return Node(
        id=NodeId(name),
        instance=InstanceId(name),
        zone=ZoneId(name[0]),
        endpoint="ipc:///x",
        pid=1,
        status=NodeStatus.READY,
    )


def nodes_of(**zones: int) -> list[Node]:
    return [node(f"{zone}{number}") for zone, count in zones.items() for number in range(count)]


def rings(assignment: Assignment) -> list[str]:
    """The zones around each ring, such as `abab`."""
    grid = assignment.grid
    return [
        "".join(assignment.owner(slot)[0] for slot in grid.pipeline(d))
        for d in range(grid.pipelines)
    ]


def clashes(ring: str) -> int:
    return sum(zone == ring[i - 1] for i, zone in enumerate(ring))


def shadows_at_home(assignment: Assignment) -> int:
    """Slots whose replica lies in their owner's zone; the zone is the first message of a name."""
    pairs = zip(assignment.owners, assignment.shadows, strict=True)
    return sum(shadow is None or owner[0] == shadow[0] for owner, shadow in pairs)


def test_rings_alternate() -> None:
    assert rings(assign(nodes_of(a=2, b=2), Grid(pipelines=1, stages=4), "stash", apart=True)) == [
        "abab"
    ]
    two = assign(nodes_of(a=4, b=4), Grid(pipelines=2, stages=4), "stash", apart=True)
    assert rings(two) == ["abab", "abab"]
    assert shadows_at_home(two) == 0
    grid = two.grid
    assert all(two.shadow(slot) == two.owner(grid.protector(slot)) for slot in grid.slots())


def test_an_odd_ring_over_two_zones_has_one_pair_in_one_but_no_replica_at_home() -> None:
    found = assign(nodes_of(a=3, b=2), Grid(pipelines=1, stages=5), "eager", apart=True)
    assert rings(found) == ["ababa"]
    assert clashes("ababa") == 1
    assert shadows_at_home(found) == 0
    assert max(Counter(found.shadows).values()) == 2
    third = assign(nodes_of(a=2, b=2, c=1), Grid(pipelines=1, stages=5), "eager", apart=True)
    assert clashes(*rings(third)) == 0
    assert max(Counter(third.shadows).values()) == 1


@given(st.lists(st.sampled_from("abcd"), min_size=4, max_size=9).filter(lambda z: len(set(z)) > 1))
def test_no_two_neighbours_lie_in_one_zone_where_that_can_be(zones: list[str]) -> None:
    grid = Grid(pipelines=1, stages=len(zones))
    nodes = [node(f"{zone}{index}") for index, zone in enumerate(zones)]
    found = assign(nodes, grid, "stash", apart=True)
    if max(Counter(zones).values()) <= len(zones) // 2:
        assert clashes(*rings(found)) == 0
    assert shadows_at_home(found) == 0
    assert sorted(found.owners) == sorted(entry.id for entry in nodes)


def test_order_of_joining_does_not_matter_and_one_zone_will_do() -> None:
    grid = Grid(pipelines=1, stages=4)
    nodes = nodes_of(a=3, b=2)
    assert len({assign(order, grid, "stash", apart=True) for order in permutations(nodes)}) == 1
    alone = nodes_of(a=4)
    assert assign(alone, grid, "stash", apart=True) == assign(alone, grid, "stash")
    assert assign(alone, grid, "peer", apart=True).shadows == (None,) * 4


def test_a_shadow_in_another_zone_comes_before_a_nearer_one() -> None:
    grid = Grid(pipelines=1, stages=4)
    owners = tuple(map(NodeId, ("b0", "a1", "a2", "a3")))
    bare = Assignment(grid=grid, owners=owners, shadows=(None,) * 4)
    zones = {owner: owner[0] for owner in owners}
    slot = grid.slots()[3]
    assert shadow_of(bare, slot, frozenset(owners)) == "a2"
    assert shadow_of(bare, slot, frozenset(owners), zones) == "b0"
    # One that is not usable does not count, and a standby does not take all replicas.
    assert shadow_of(bare, slot, frozenset(owners[1:]), zones) == "a2"
    usable = frozenset((*owners[1:], NodeId("b9")))
    assert shadow_of(bare, slot, usable, zones | {NodeId("b9"): "b"}) == "a2"


def formed(*names: str, pipelines: int = 1, stages: int = 4) -> State:
    state = forming(pipelines, stages)
    for name in names:
        state = say(state, joined(name, name[0]))
    assert state.phase is Phase.RUNNING
    return state


def say(state: State, event: Event) -> State:
    after = transition(state, event, now_s=0.0, policy=APART).state
    assert check(after) == []
    assert check_step(state, after) == []
    return after


def settle(state: State) -> State:
    for _ in range(ROUNDS):
        events = pending(state)
        if not events:
            return state
        state = say(state, events[0])
    raise AssertionError(f"it never settles: {state.sentence}")


def test_a_whole_zone_may_go_and_its_return_brings_the_zones_back() -> None:
    state = formed("a1", "a2", "b1", "b2")
    for victim in ("b1", "b2"):
        state = say(state, lost(victim))
    assert state.outcome is None
    assert state.assignment is not None
    assert set(state.assignment.owners) == {"a1", "a2"}
    state = settle(state)
    for name in ("b3", "b4"):
        state = settle(say(state, joined(name, "b")))
    assert state.assignment is not None
    assert clashes(*rings(state.assignment)) == 0
    assert shadows_at_home(state.assignment) == 0


def test_a_standby_from_the_zone_of_the_lost_one_takes_over() -> None:
    state = formed("a1", "a2", "b1", "b2")
    for name in ("a0", "b9"):
        state = say(state, joined(name, name[0]))
    state = settle(say(state, lost("b1")))
    assert state.assignment is not None
    assert "b9" in state.assignment.owners
    assert "a0" not in state.assignment.members()
    assert shadows_at_home(state.assignment) == 0


def test_a_new_layout_keeps_what_is_held_and_takes_the_rest_from_the_other_zone() -> None:
    layout = ModelLayout(grid=Grid(pipelines=1, stages=4), cut=(0, 1, 2, 3, 4), shares=(1,))
    nodes = nodes_of(a=4, b=3)
    fresh = place(nodes, layout, {}, "stash", apart=True)
    assert rings(fresh) == ["abab"]
    assert shadows_at_home(fresh) == 0
    held = {NodeId("a3"): frozenset({0, 1}), NodeId("a2"): frozenset({2, 3})}
    kept = place(nodes, layout, held, "stash", apart=True)
    assert (kept.owners[0], kept.owners[2]) == ("a3", "a2")
    assert rings(kept) == ["abab"]
    assert set("".join(rings(place(nodes, layout, {}, "stash")))) == {"a"}


# ---------------------------------------------------------------- pipelines of one stage


def zones_of(assignment: Assignment) -> list[str]:
    return [str(owner)[0] for owner in assignment.owners]


def test_pipelines_of_one_stage_take_turns_over_the_zones() -> None:
    """Also where one zone has nodes for all of them: a standby may be in any."""
    for nodes, pipelines, found in (
        (nodes_of(a=2, b=1), 2, ["a", "b"]),
        (nodes_of(a=3, b=1, c=1), 4, ["a", "b", "c", "a"]),
        (nodes_of(a=1, b=3), 3, ["b", "a", "b"]),
        (nodes_of(a=3), 2, ["a", "a"]),
    ):
        grid = Grid(pipelines=pipelines, stages=1)
        assert zones_of(assign(nodes, grid, "peer", apart=True)) == found
        within = zones_of(assign(nodes, grid, "peer"))
        assert within == sorted(within)


def test_a_pipeline_of_one_stage_comes_back_where_fewest_are() -> None:
    grid = Grid(pipelines=3, stages=1)
    layout = ModelLayout(grid=grid, cut=(0, 4), shares=(2, 1, 1))
    nodes = nodes_of(a=3, b=2, c=1)
    held = {nodes[0].id: frozenset(range(4)), nodes[3].id: frozenset(range(4))}
    assert sorted(zones_of(place(nodes, layout, held, "peer", apart=True))) == ["a", "b", "c"]
    assert sorted(zones_of(place(nodes[:5], layout, held, "peer", apart=True))) == ["a", "a", "b"]


def test_which_spread_keeps_apart_depends_on_the_stages() -> None:
    ring, flat = Policy(stages=4), Policy(stages=1)
    found = {
        (policy.stages, spread): replace(policy, spread=spread).apart
        for policy in (ring, flat)
        for spread in SPREADS
    }
    assert {key for key, apart in found.items() if apart} == {(4, "neighbours"), (1, "pipelines")}
