"""Short ways to states and events for the tests of the core."""

from bamboo.coord.codec import decode_state, encode_state
from bamboo.core.events import Event, FaultScope, NodeFailed, NodeJoined, PeerLost, Prepared
from bamboo.core.machine import Transition, transition
from bamboo.core.state import Policy, State, initial_state
from bamboo.ids import InstanceId, NodeId, ZoneId, run_id
from bamboo.topology.grid import Grid

POLICY = Policy(suspect_s=1.0, gone_s=3.0)


def joined(node: str, zone: str = "z1") -> NodeJoined:
    """The node of the first boot of an instance named like it."""
    return NodeJoined(
        node=NodeId(node),
        instance=InstanceId(node.split(".", maxsplit=1)[0]),
        zone=ZoneId(zone),
        endpoint=f"ipc:///{node}",
        pid=1,
    )


def lost(node: str, reporter: str = "fleet", cause: str = "disconnect") -> PeerLost:
    return PeerLost(node=NodeId(node), reporter=reporter, cause=cause)


def failed(node: str, scope: FaultScope, reason: str = "its disk is full") -> NodeFailed:
    """The node of the first boot of an instance named like it met a fault of its own."""
    known = joined(node)
    return NodeFailed(
        node=known.node, instance=known.instance, zone=known.zone, scope=scope, reason=reason
    )


def prepared(state: State) -> list[Event]:
    """Everybody who is sent state ahead of a new layout has it."""
    ahead = state.preparing
    receivers = () if ahead is None else sorted(ahead.receivers)
    return [prepared_by(state, node) for node in receivers]


def prepared_by(state: State, node: NodeId) -> Prepared:
    """The word of one of them."""
    assert state.preparing is not None
    feeds = [feed for feed in state.preparing.feeds if feed.receiver == node]
    since = max(feed.since for feed in feeds)
    return Prepared(node=node, since=since, bytes=12, followed_bytes=4)


def forming(pipelines: int = 1, stages: int = 4, redundancy: str = "stash") -> State:
    grid = Grid(pipelines=pipelines, stages=stages)
    return initial_state(run=run_id("test"), grid=grid, redundancy=redundancy)


def apply(state: State, event: Event, now_s: float = 0.0) -> Transition:
    return transition(state, event, now_s=now_s, policy=POLICY)


def afresh(state: State, event: Event, now_s: float, policy: Policy = POLICY) -> Transition:
    """The decision on the same state as read from its document: nothing may hang on what is known
    of a state beside what it says."""
    return transition(decode_state(encode_state(state)), event, now_s=now_s, policy=policy)


def running(pipelines: int = 1, stages: int = 4, redundancy: str = "stash") -> State:
    """A run of nodes n00.1, n01.1, ... in one zone, in slot order."""
    state = forming(pipelines, stages, redundancy)
    for index in range(state.grid.size):
        state = apply(state, joined(f"n{index:02}.1")).state
    return state
