"""Decides what a fault ends, the node alone or the run, and when another node may be rented after
nodes that failed.

Rules. (1) A node that owns no slot never ends a run that has begun: the node leaves, with the
reason, and the others go on. (2) A fault of one node alone (`FaultScope.NODE`) is a loss like any
other. A fault that the same work would meet on any node ends the run, if the node owns a slot or
nothing has been trained yet. (3) The next node may fail in the same way, and costs money. So the
wait before another is rented doubles from try to try. A run that has no nodes left, or that is
still forming, ends after MOST_TRIES; one that is forming ends at once when all its first nodes meet
the same fault together. (4) A second node whose GPU or memory fails at the same stage, before the
run has got further, ends the run: the stage does not fit, or its work breaks the device.
"""

from dataclasses import replace

from bamboo.core.effects import FLEET, TerminateInstance
from bamboo.core.events import FaultScope, NodeFailed, RunFailed
from bamboo.core.failover import lose
from bamboo.core.liveness.patience import parked
from bamboo.core.state import DeviceFault, Faults, Node, NodeStatus, Outcome, Phase, Policy, State
from bamboo.core.transition import Transition, away, changed, describe, end, stale
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId

MOST_TRIES = 4
"""So many tries in a row may fail before a run without nodes, or one that is forming, ends."""
FIRST_WAIT_S = 5.0
"""After the first fault no node is rented for so long; the wait doubles with each further try."""
CALM_S = 600.0
CALM_WAITS = 10.0
"""Faults that are further apart than both CALM_S and CALM_WAITS waits do not belong together, if a
node was taken in between them."""
FEW_STEPS = 10
"""Devices that fail at one stage within so many steps fail for the same reason."""
_MOST_DOUBLED = 20


def fail_node(state: State, event: NodeFailed, *, now_s: float, policy: Policy) -> Transition:
    """A node that has joined, or was about to, failed by itself."""
    node = state.node(event.node)
    if node is not None and not node.status.live:
        return stale(state, f"{event.node} {away(node)} already")
    everywhere = event.scope is FaultScope.RUN
    if everywhere and (not has_begun(state) or owns_slot(state, event.node)):
        return end(state, Outcome.FAULT, f"node {event.node} failed: {event.reason}")
    devices = {d.stage: d for d in state.faults.devices} if state.faults else {}
    if (at := _device_fault(state, event)) is not None:
        same = devices.get(at.stage)
        if same is not None and at.step - same.step <= FEW_STEPS:
            words = f"{describe(state, event.node)} failed in step {at.step}: {event.reason}; node "
            words += f"{same.node} failed at this stage, too, in step {same.step}; so would another"
            return end(state, Outcome.FAULT, words)
        devices[at.stage] = at
    faults = replace(_counted(state, event, now_s=now_s), devices=tuple(devices.values()))
    noted = state.having(faults=faults)
    if node is None:
        decided = _refuse(noted, event)
    else:
        decided = lose(noted, node, how=f"it failed, {event.reason}", now_s=now_s, policy=policy)
    return _unless_in_vain(decided, faults, now_s=now_s)


def fail_run(state: State, event: RunFailed, *, now_s: float, policy: Policy) -> Transition:
    """End the run for a reason that no failover mends. If the reporter is a node that owns nothing,
    it is the fault of that node alone."""
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
    """Make the event that a node which has joined has failed."""
    return NodeFailed(
        node=node.id, instance=node.instance, zone=node.zone, scope=scope, reason=reason
    )


def has_begun(state: State) -> bool:
    """Whether any node has trained since the run was launched or resumed."""
    return (
        bool(state.reconfiguration.owners)
        if state.reconfiguration is not None
        else state.assignment is not None
    )


def owns_slot(state: State, node: NodeId) -> bool:
    """Whether the node trains a slot. A slot that it will only get in a new layout does not
    count."""
    if state.reconfiguration is not None:
        return node in state.reconfiguration.owners
    return state.assignment is not None and bool(state.assignment.owned_by(node))


def wait_s(tries: int) -> float:
    """For how long no node is rented after this many tries in a row."""
    return float(FIRST_WAIT_S * 2 ** min(tries - 1, _MOST_DOUBLED))


def may_rent(state: State, *, booting: int, now_s: float) -> int | None:
    """How many nodes may be rented at `now_s` (the store's time) while `booting` others are on
    their way; None: as many as the run lacks. After a second try in a row nodes come one at a time,
    until one has been taken in."""
    faults = state.faults
    if faults is None or _took_in(state, faults):
        return None
    if now_s < faults.at_s + wait_s(faults.tries):
        return 0
    return None if faults.tries == 1 else max(0, 1 - booting)


def _counted(state: State, event: NodeFailed, *, now_s: float) -> Faults:
    """Count this fault. Nodes that fail within the wait were rented together and are one try."""
    before = state.faults
    reason = event.reason.replace(event.node, "")  # it may name the node's own log
    first = Faults(
        tries=1,
        nodes=1,
        at_s=now_s,
        known=len(state.nodes) + (state.node(event.node) is None),
        reason=reason,
    )
    if before is None:
        return first
    waited_s, passed_s = wait_s(before.tries), now_s - before.at_s
    if _took_in(state, before) and passed_s > max(CALM_S, CALM_WAITS * waited_s):
        return first
    if passed_s < waited_s:
        shared = reason if reason == before.reason else ""
        together = replace(first, tries=before.tries, at_s=before.at_s, reason=shared)
        return replace(together, nodes=before.nodes + 1)
    return replace(first, tries=before.tries + 1, nodes=before.nodes + 1)


def _device_fault(state: State, event: NodeFailed) -> DeviceFault | None:
    """The fault of a device at the work of its stage; None: it is another fault, or the node had
    more than the plan gives a node, as after a failover, or while it builds another layout."""
    assignment, changes = state.assignment, state.reconfiguration
    builds = changes is not None and changes.base is not None
    if event.scope is not FaultScope.DEVICE or assignment is None or builds:
        return None
    owned = assignment.owned_by(event.node)
    if len(owned) != 1 or len(assignment.shadowed_by(event.node)) > 1:
        return None
    stage = f"{owned[0].stage} of {state.grid.stages}"
    return DeviceFault(node=event.node, stage=stage, step=event.step)


def _took_in(state: State, faults: Faults) -> bool:
    """Whether a node that came after these faults has a role, or is there while the run forms."""
    later = [node for node in state.nodes[faults.known :] if node.status.live]
    if state.phase is Phase.FORMING:
        return bool(later)
    if state.assignment is None or state.reconfiguration is not None:
        return False
    return any(state.assignment.roles.has(node.id) for node in later)


def _refuse(state: State, event: NodeFailed) -> Transition:
    """Note a node that never joined, so that its name and instance are known, and end its
    instance."""
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
    """Go on without the node, unless the run has no nodes left or is forming and has tried too
    often."""
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
        assert reconfiguration is not None, "only a reconfiguration waits for nodes"
        state = state.having(reconfiguration=replace(reconfiguration, forced=True))
    rest_s = faults.at_s + wait_s(faults.tries) - now_s
    words = f"no other is rented for {rest_s:.0f} s (try {faults.tries})"
    return replace(decided, state=state, reason=f"{decided.reason}; {words}")


def _all_alike(state: State, faults: Faults) -> bool:
    """Whether all the first nodes of a run that is forming met the same fault together, so that the
    next ones would meet it too. A node that failed later shows nothing but its own fault."""
    all_at_once = faults.tries == 1 and faults.nodes >= state.grid.size
    return all_at_once and bool(faults.reason) and not state.roll.live


def _give_up(decided: Transition, words: str) -> Transition:
    return end(decided.state, Outcome.FAULT, f"{decided.reason}; {words}", first=decided.effects)
