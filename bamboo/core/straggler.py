"""Replaces a member that is slower than its peers, once its successor is there.

Rules. (1) A node is slow if its speed is below SLOW of the median speed of the others in ROUNDS
measurements, with none at FINE or above in between. (2) It is replaced by a standby only. The
standby gets the state in the background and the slot at a step boundary; then the slow node gives
its replicas away and leaves. (3) Until it has left, the fleet keeps one more node, so that there is
a standby for it. If the node is fine again, the extra node stays for the next loss, or for the
autoscaler to give back. (4) One node is replaced at a time. A slot whose owner was replaced is
judged again only once a measurement has found its new owner fine. If the new owner is as slow, the
work of the slot is slow, and another node would be no faster.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median

from bamboo.core.events import SpeedsMeasured
from bamboo.core.reconfiguration import at_rest
from bamboo.core.state import NodeStatus, Slow, State
from bamboo.core.transition import Transition, changed, describe, stale
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.strategy import BARE_MODES

SLOW = 0.8
FINE = 0.9
ROUNDS = 3


def judge_speeds(state: State, event: SpeedsMeasured) -> Transition:
    """Note which nodes are slow. The slowest one that was slow for long enough is to be
    replaced."""
    assignment = state.assignment
    if assignment is None or event.era != state.era:
        return stale(state, "the layout is another one by now")
    if not at_rest(state) or state.redundancy in BARE_MODES:
        return stale(state, "nobody can be replaced now")
    shares = _shares_of_the_median(event, assignment)
    rounds = {slow.node: slow.rounds for slow in state.slow}
    for node, share in shares.items():
        if share >= FINE:
            rounds.pop(node, None)
        elif share < SLOW:
            rounds[node] = min(rounds.get(node, 0) + 1, ROUNDS)
    fine = {node for node, share in shares.items() if share >= FINE}
    noted = replace(
        state,
        slow=tuple(Slow(node=n, rounds=rounds[n]) for n in sorted(rounds) if n in shares),
        relieved=tuple(slot for slot in state.relieved if assignment.owner(slot) not in fine),
        retiring=None if state.retiring in fine else state.retiring,
    )
    leaver = _to_replace(noted, shares)
    if leaver is not None:
        noted = replace(
            noted,
            slow=tuple(slow for slow in noted.slow if slow.node != leaver),
            relieved=(*noted.relieved, *assignment.owned_by(leaver)),
            retiring=leaver,
        )
        reason = f"{_named(state, leaver, shares)}: a standby takes its place"
        return changed(noted, (), reason)
    if noted == state:
        return stale(state, "nobody is slower than was known")
    names = [_named(state, slow.node, shares) for slow in noted.slow]
    if kept_beyond(noted) > kept_beyond(state):
        names.append("one node more is to take its place")
    return changed(noted, (), "; ".join(names) or "nobody is slow any more")


def kept_beyond(state: State) -> int:
    """How many nodes the fleet keeps beyond those that the run should have: one for each node with
    rebalance advice, and one while a slow node is to be replaced."""
    slow = [node for node, slots in _to_go(state) if slots == 1]  # several: too few nodes
    going = slow if state.retiring is None else [state.retiring]
    found = (state.node(node) for node in going)
    more = any(node is not None and node.usable and not node.advised for node in found)
    return state.roll.advised + more


def _shares_of_the_median(event: SpeedsMeasured, assignment: Assignment) -> Mapping[NodeId, float]:
    """The speed of each measured owner as a share of the median speed of the others."""
    owners = set(assignment.owners)
    speeds = {s.node: s.speed for s in event.speeds if s.node in owners and s.speed > 0}
    if len(speeds) < 2:
        return {}
    ascending = sorted(speeds.values())

    first, last = (len(ascending) - 2) // 2, (len(ascending) - 1) // 2

    def of_others(speed: float) -> float:
        """The median of all speeds without one of this speed."""
        mine = bisect_left(ascending, speed)
        low, high = (ascending[i if i < mine else i + 1] for i in (first, last))
        return median((low, high))

    return {node: speed / of_others(speed) for node, speed in speeds.items()}


def _to_replace(state: State, shares: Mapping[NodeId, float]) -> NodeId | None:
    """The slowest node that was slow for long enough, if there are standbys for all its slots."""
    if state.retiring is not None:
        return None
    standbys = sum(n.status is NodeStatus.READY and n.usable for n in state.roll.aside)
    able = [node for node, slots in _to_go(state) if slots <= standbys]
    return min(able, key=lambda node: (shares[node], node), default=None)


def _to_go(state: State) -> Iterator[tuple[NodeId, int]]:
    """The nodes that were slow for long enough and would stay, each with the number of its slots. A
    node that is as slow as the one that it replaced is left out."""
    if state.assignment is None:
        return
    for slow in state.slow:
        node, slots = state.node(slow.node), state.assignment.owned_by(slow.node)
        stays = node is not None and node.notice_deadline_s is None
        again = any(slot in state.relieved for slot in slots)
        if slow.rounds == ROUNDS and stays and slots and not again:
            yield slow.node, len(slots)


def _named(state: State, node: NodeId, shares: Mapping[NodeId, float]) -> str:
    return f"{describe(state, node)} does {shares[node]:.2f} of the median speed of its peers"
