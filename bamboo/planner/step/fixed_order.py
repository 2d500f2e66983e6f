"""Nodes whose order is fixed until the end of a step's programs, computed without single events.

Rule: a node that owns one slot and shadows nothing that it could run meanwhile runs that slot's
operations one after the other, each as soon as its input is there. So their times follow from the
times of its inputs alone, and only its messages to nodes that have a choice are events. The last
operation of the program is an event too: after it comes the exchange, where nodes have a choice
again. No replica can step before that, because every slot sends its squares first.

This is the lookahead of conservative parallel simulation (Chandy and Misra, "Distributed
Simulation", IEEE TSE 1979).
"""

from collections.abc import Callable

from bamboo.planner.step.links import Links
from bamboo.planner.step.states import UNKNOWN_NS, NodeState, SlotState

Arrive = Callable[[SlotState, int], None]


def begins_fixed_order(node: NodeState, now_ns: int) -> bool:
    """Whether the node, which is about to run an operation of a program, has no choice until the
    end of the program; then it is marked so.

    It does have one while a yielding message is in transit on one of its links, because the delay
    of that message depends on when each other message is sent.
    """
    state = node.owned[0]
    if len(node.owned) > 1 or not state.takes_time or state.at >= state.last:
        return False
    if state.sends_twice or any(
        shadow.forwards or shadow.step != state.step for shadow in node.shadowed
    ):
        return False
    for lanes in (state.output_lanes, state.gradient_lanes):
        if lanes is not None and lanes.yielding_free_ns > now_ns:
            return False
    node.fixed_order = True
    node.free_ns = now_ns
    return True


def work_out(state: SlotState, links: Links, arrive: Arrive) -> list[SlotState]:
    """Run a slot of a node of fixed order as far as the times of its inputs are known, and other
    slots that this lets continue. Returns those whose next operation is the last one of the program
    and has its input."""
    at_last, todo = [], [state]
    while todo:
        state = todo.pop()
        todo += _go_on(state, links, arrive)
        if state.at == state.last and state.there_ns[state.at] < UNKNOWN_NS:
            at_last.append(state)
    return at_last


def _go_on(state: SlotState, links: Links, arrive: Arrive) -> list[SlotState]:
    """Advance one slot. Returns slots that waited for what it sent."""
    there_ns = state.there_ns
    starts_ns = state.starts_ns
    durations_ns = state.durations_ns
    sends_on, places = state.sends_on, state.places
    at = state.at
    base = state.base
    last = state.last
    free_ns = state.node.free_ns
    waited = []
    while at < last:
        if (there := there_ns[at]) > free_ns:
            if there == UNKNOWN_NS:
                break
            free_ns = there
        starts_ns[at] = free_ns
        cursor = at - base
        free_ns += durations_ns[cursor]
        at += 1
        if sends_on[cursor]:
            to = state.after
            lanes = state.output_lanes
            carry_ns = state.output_ns
        else:
            to = state.before
            lanes = state.gradient_lanes
            carry_ns = state.gradient_ns
        if to is None:
            continue
        assert lanes is not None, "its neighbours are other nodes"
        sent_ns = lanes.free_ns
        sent_ns = max(sent_ns, free_ns)
        lanes.free_ns = sent_ns = sent_ns + carry_ns
        arrives_ns, place = sent_ns + lanes.latency_ns, base + places[cursor]
        if not to.node.fixed_order:
            links.at(arrives_ns, (arrive, to, place))
        else:
            to.there_ns[place] = arrives_ns
            if to.at == place:
                waited.append(to)
    state.at = at
    state.node.free_ns = free_ns
    return waited
