"""Gives nodes back on purpose: all stop at a boundary and go on without them.

Rule: nothing is lost. What a leaving node holds goes to the nodes that stay, in a planned
reconfiguration, before it leaves. At least as many nodes stay as one whole pipeline needs.
"""

from dataclasses import replace

from bamboo.core.effects import Effect, End
from bamboo.core.events import NodesReleased
from bamboo.core.reconfiguration import at_rest, begin_reconfiguration, give_back
from bamboo.core.state import NodeStatus, Policy, State
from bamboo.core.transition import Transition, changed, stale, with_status


def release(state: State, event: NodesReleased, policy: Policy) -> Transition:
    """Release the nodes that the launcher gives back. Standbys leave at once, all others with the
    layout that is made without them."""
    if not policy.elastic or state.assignment is None:
        return stale(state, "no other layout is possible")
    if not at_rest(state):
        return stale(state, "something else is under way; say it again")
    found = (state.node(node) for node in dict.fromkeys(event.nodes))
    named = [node for node in found if node is not None and node.usable]
    if not named:
        return stale(state, "none of these nodes is there to be given back")
    staying = len(state.roll.usable) - len(named)
    if staying < policy.stages:
        return stale(state, f"{staying} nodes would stay, and a pipeline takes {policy.stages}")
    if staying < event.keep:
        return stale(state, f"{staying} nodes would stay, and {event.keep} are wanted")
    idle = [node for node in named if node.status is NodeStatus.READY]
    effects: list[Effect] = [End(to=node.id) for node in idle]
    effects += [give_back(node) for node in idle]
    after = state.with_nodes(*(replace(node, released=True) for node in named))
    after = with_status(after, NodeStatus.LEFT, *(node.id for node in idle))
    count = f"{len(named)} {'node is' if len(named) == 1 else 'nodes are'} given back"
    if len(idle) == len(named):
        return changed(after, effects, f"{event.reason}: {count} that had no slot")
    after, orders = begin_reconfiguration(after, why=event.reason, planned=True, forced=True)
    reason = f"{event.reason}: {count}, a new layout at the next boundary"
    return changed(after, (*effects, *orders), reason)
