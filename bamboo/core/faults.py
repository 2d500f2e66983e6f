"""A node that fails by itself: who goes with it, the node alone or the run; and when another may be
rented after nodes that could not take part.

Rules. (1) A node that owns no slot never ends a run that has begun: it leaves, with the reason, and
the others go on. (2) A fault of its node alone (`FaultScope.NODE`) is a loss like any other. One
that the same work would meet anywhere ends the run where it trains, and before it has begun.
(3) Whoever comes next may fail the same way, and costs money: the wait before another is rented
doubles from try to try, and a run that has nobody left, or that forms, ends after MOST_TRIES; one
that forms ends at once when all its first nodes meet one fault together. Pure.
"""

from dataclasses import replace

from bamboo.core.effects import FLEET, TerminateInstance
from bamboo.core.ending import end
from bamboo.core.events import FaultScope, NodeFailed, RunFailed
from bamboo.core.failover import lose
from bamboo.core.patience import parked
from bamboo.core.policy import Policy
from bamboo.core.state import Faults, Node, NodeStatus, Outcome, Phase, State
from bamboo.core.transition import Transition, away, changed, stale
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId

MOST_TRIES = 4
"""So often in a row nodes may fail before a run that nobody is left of, or that forms, ends."""
FIRST_WAIT_S = 5.0
"""After the first fault nobody is rented for so long; after each further try twice as long."""
CALM_S = 600.0
CALM_WAITS = 10.0
"""Faults that lie further apart than either do not belong together, if somebody was taken in
between them."""
_MOST_DOUBLED = 20


def fail_node(state: State, event: NodeFailed, *, now_s: float, policy: Policy) -> Transition:
    """A node that joined, or was about to, failed by itself."""
    node = state.node(event.node)
    if node is not None and not node.status.live:
        return stale(state, f"{event.node} {away(node)} already")
    everywhere = event.scope is FaultScope.RUN
    if everywhere and (not has_begun(state) or owns_slot(state, event.node)):
        return end(state, Outcome.FAULT, f"node {event.node} failed: {event.reason}")
    faults = _counted(state, event, now_s=now_s)
    noted = state.having(faults=faults)
    if node is None:
        decided = _refuse(noted, event)
    else:
        decided = lose(noted, node, how=f"it failed, {event.reason}", now_s=now_s, policy=policy)
    return _unless_in_vain(decided, faults, now_s=now_s)


def fail_run(state: State, event: RunFailed, *, now_s: float, policy: Policy) -> Transition:
    """End the run for a reason that no failover mends, unless it is the word of a node that owns
    nothing: then it is that node's fault alone."""
    if event.outcome is Outcome.DONE:
        raise CoreMisuse(f"RunFailed from {event.reporter} with the outcome done")
    reporter = state.node(NodeId(event.reporter))
    if reporter is None:
        return end(state, event.outcome, f"{event.reason} (says {event.reporter})")
    if not reporter.status.live:
        return stale(state, f"{event.reporter} {away(reporter)}: its report does not count")
    if not has_begun(state) or owns_slot(state, reporter.id):
        return end(state, event.outcome, f"{event.reason} (says {event.reporter})")
    alone = fault_of(reporter, FaultScope.RUN, event.reason)
    return fail_node(state, alone, now_s=now_s, policy=policy)


def fault_of(node: Node, scope: FaultScope, reason: str) -> NodeFailed:
    """The event that a node which has joined failed."""
    return NodeFailed(
        node=node.id, instance=node.instance, zone=node.zone, scope=scope, reason=reason
    )


def has_begun(state: State) -> bool:
    """Whether anybody has trained since the run was launched or resumed."""
    return (
        bool(state.reconfiguration.owners)
        if state.reconfiguration is not None
        else state.assignment is not None
    )


def owns_slot(state: State, node: NodeId) -> bool:
    """Whether the node trains a slot; not one that it is only about to be given in a new layout."""
    if state.reconfiguration is not None:
        return node in state.reconfiguration.owners
    return state.assignment is not None and bool(state.assignment.owned_by(node))


def wait_s(tries: int) -> float:
    """So long nobody is rented after that many tries in a row."""
    return float(FIRST_WAIT_S * 2 ** min(tries - 1, _MOST_DOUBLED))


def may_rent(state: State, *, booting: int, now_s: float) -> int | None:
    """How many nodes may be rented at `now_s` (the store's time), while `booting` others are on
    their way; None: as many as the run lacks. After a second try in a row only one at a time,
    until one has been taken in."""
    faults = state.faults
    if faults is None or _took_in(state, faults):
        return None
    if now_s < faults.at_s + wait_s(faults.tries):
        return 0
    return None if faults.tries == 1 else max(0, 1 - booting)


def _counted(state: State, event: NodeFailed, *, now_s: float) -> Faults:
    """The faults so far and this one. Those within the wait were rented together: one try."""
    before = state.faults
    first = Faults(
        tries=1,
        nodes=1,
        at_s=now_s,
        known=len(state.nodes) + (state.node(event.node) is None),
        reason=event.reason,
    )
    if before is None:
        return first
    waited_s, passed_s = wait_s(before.tries), now_s - before.at_s
    if _took_in(state, before) and passed_s > max(CALM_S, CALM_WAITS * waited_s):
        return first
    if passed_s < waited_s:
        reason = event.reason if event.reason == before.reason else ""
        together = replace(first, tries=before.tries, at_s=before.at_s, reason=reason)
        return replace(together, nodes=before.nodes + 1)
    return replace(first, tries=before.tries + 1, nodes=before.nodes + 1)


def _took_in(state: State, faults: Faults) -> bool:
    """Whether a node that came after these faults has a place, or is there while the run forms."""
    later = [node for node in state.nodes[faults.known :] if node.status.live]
    if state.phase is Phase.FORMING:
        return bool(later)
    if state.assignment is None or state.reconfiguration is not None:
        return False
    return any(state.assignment.roles.has(node.id) for node in later)


def _refuse(state: State, event: NodeFailed) -> Transition:
    """One that never joined: it is known from now on, so that its name and instance are."""
    node = Node(
        id=event.node,
        instance=event.instance,
        zone=event.zone,
        endpoint="",
        pid=0,
        status=NodeStatus.GONE,
    )
    reason = f"node {event.node} cannot take part and leaves: {event.reason}"
    effect = TerminateInstance(to=FLEET, instance=event.instance, reason=reason)
    return changed(state.with_nodes(node), (effect,), reason)


def _unless_in_vain(decided: Transition, faults: Faults, *, now_s: float) -> Transition:
    """Go on without the node; a run that nobody is left of, or that forms, not for ever."""
    state = decided.state
    if state.phase is Phase.FINISHED:
        return decided
    often = faults.tries >= MOST_TRIES
    if state.phase is Phase.FORMING and (often or _all_alike(state, faults)):
        return _give_up(decided, f"{faults.nodes} nodes failed, and the run has not begun")
    if often and parked(state):
        if not state.roll.live:
            return _give_up(decided, f"{faults.nodes} nodes failed in a row, and nobody is left")
        reconfiguration = state.reconfiguration
        assert reconfiguration is not None, "only a run that is laid out anew waits for nodes"
        state = state.having(reconfiguration=replace(reconfiguration, forced=True))
    rest_s = faults.at_s + wait_s(faults.tries) - now_s
    words = f"no other is rented for {rest_s:.0f} s (try {faults.tries})"
    return replace(decided, state=state, reason=f"{decided.reason}; {words}")


def _all_alike(state: State, faults: Faults) -> bool:
    """Whether all the first nodes of a run that forms met one fault together: the next would meet
    it, too. Who failed later shows only that it failed as well."""
    all_at_once = faults.tries == 1 and faults.nodes >= state.grid.size
    return all_at_once and bool(faults.reason) and not state.roll.live


def _give_up(decided: Transition, words: str) -> Transition:
    return end(decided.state, Outcome.FAULT, f"{decided.reason}; {words}", first=decided.effects)
