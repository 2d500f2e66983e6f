"""Decides what happens when a node is lost or leaves: its shadows take over, all reconfigure, or
the run ends because no live node holds a copy.

The neighbour that keeps the replica of a stage takes the stage over (Thorpe et al., Bamboo, NSDI
2023). Rule: nothing here rolls back, and no slot waits without an owner.
"""

from dataclasses import replace

from bamboo.core.effects import (
    FLEET,
    OTHERS,
    Effect,
    End,
    Fence,
    Promote,
    Resend,
    Stay,
    TerminateInstance,
)
from bamboo.core.ending import settle_stop
from bamboo.core.events import CaughtUp, HandedOver
from bamboo.core.keep import cut_of, fits_notice, unfit_words
from bamboo.core.reconfiguration import begin_reconfiguration, can_recover, lose_while_reconfiguring
from bamboo.core.state import Failover, Node, NodeStatus, Outcome, Phase, Policy, State
from bamboo.core.transition import (
    Transition,
    acting_member,
    acts,
    away,
    changed,
    describe,
    end,
    listed,
    name_slots,
    stale,
    with_status,
)
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import BARE_MODES


def lose(state: State, node: Node, *, how: str, now_s: float, policy: Policy) -> Transition:
    """A live node is gone for ever. `how` is a clause for the reason."""
    reason = f"{describe(state, node.id)} is gone: {how}"
    terminate = TerminateInstance(to=FLEET, instance=node.instance, reason=reason)
    without = with_status(state, NodeStatus.GONE, node.id)
    fence = Fence(to=node.id)
    if state.reconfiguration is not None:
        return lose_while_reconfiguring(without, node.id, (fence, terminate), reason, policy)
    if node.status is NodeStatus.READY:
        return changed(without, (fence, terminate), f"{reason}; it had no slot")
    assignment = assigned(state)
    orphans = [s for s in assignment.owned_by(node.id) if heir(state, assignment, s) is None]
    if orphans and can_recover(state, policy):
        bare = f"no shadow has {name_slots(state, orphans)}"
        after, orders = begin_reconfiguration(without, why=reason, planned=False)
        words = f"{reason}; {bare}, every node stops where it is"
        return changed(after, (fence, *orders, terminate), words)
    if orphans:
        over = replace(without, generation=state.generation + 1)
        why = (
            f"redundancy is {state.redundancy}"
            if state.redundancy in BARE_MODES
            else "its shadow is gone too"
        )
        reason = f"{reason}; no live node holds {name_slots(state, orphans)} ({why})"
        cut = cut_of(state, policy) if policy.keeps else ()
        if node.notice_deadline_s is not None and cut and not fits_notice(policy, cut):
            reason += f"; {unfit_words(policy, cut)}, as the plan says"
        if state.emergency is not None and state.emergency.failed:
            reason += "; what it alone held could not be stored before"
        return end(over, Outcome.UNRECOVERABLE, reason, first=(fence,))
    after, effects, words = pass_on(without, node.id, planned=False, now_s=now_s)
    return changed(after, (fence, *effects, terminate), f"{reason}; {words}")


def hand_over(state: State, event: HandedOver, *, now_s: float) -> Transition:
    """A draining node has stopped at a step boundary: its shadows go on, and nothing is recomputed.

    The instance is left to the cloud: an instance that the cloud interrupts may be free of charge,
    one that is terminated from here is not.
    """
    node = acting_member(state, event.node, "HandedOver")
    if not acts(node):
        return stale(state, f"{event.node} {away(node)}: it hands nothing over")
    if node.status is NodeStatus.MEMBER:
        if node.notice_deadline_s is None:
            raise CoreMisuse(f"HandedOver from {event.node}, which was never told to drain")
        return stale(state, f"{event.node} has nobody to hand over to any more; it stays")
    reason = f"{describe(state, event.node)} handed over after step {event.step}"
    without = with_status(state, NodeStatus.LEFT, event.node)
    after, effects, words = pass_on(without, event.node, planned=True, now_s=now_s)
    return changed(after, (*effects, End(to=event.node)), f"{reason}; {words}")


def catch_up(state: State, event: CaughtUp) -> Transition:
    """The successor of a failover has recomputed all that its victim had done."""
    node = acting_member(state, event.node, "CaughtUp")
    if not acts(node):
        return stale(state, f"{event.node} {away(node)}: its report does not count")
    names = name_slots(state, (event.slot,))
    mine = (event.slot, event.node)
    done = next((f for f in state.failovers if (f.slot, f.successor) == mine), None)
    if done is None:
        return stale(state, f"no failover of {names} to {event.node} is under way")
    after = state.having(failovers=tuple(f for f in state.failovers if f is not done))
    reason = f"node {event.node} caught up with {names} in step {event.step}: "
    if done.planned:
        reason += "a hand-over, nothing was recomputed"
    else:
        again = f"{event.recomputed} forward{'' if event.recomputed == 1 else 's'}"
        reason += (
            f"{again} recomputed, {event.already_computed} had been computed ahead, first "
            f"operation {event.pause_s * 1000:.0f} ms after the loss was seen"
        )
    return changed(after, (), reason)


def pass_on(
    state: State, leaver: NodeId, *, planned: bool, now_s: float
) -> tuple[State, tuple[Effect, ...], str]:
    """Give every slot of `leaver` to its shadow, under a new generation.

    In `state` the leaver's status is changed already, and every slot that it owns must have a live
    shadow. Returns the state, the effects for the nodes that stay, and words for the reason.
    """
    assignment = assigned(state)
    heirs = {slot: _sure_heir(state, assignment, slot) for slot in assignment.owned_by(leaver)}
    bare = (*heirs, *assignment.shadowed_by(leaver))
    started = tuple(
        Failover(slot=slot, victim=leaver, successor=to, decided_at_s=now_s, planned=planned)
        for slot, to in heirs.items()
    )
    # A successor that had written its final state owns more now, and must report again.
    owing = {leaver, *heirs.values()}
    after = state.having(
        generation=state.generation + 1,
        assignment=assignment.replace(owners=heirs, shadows=dict.fromkeys(bare)),
        failovers=(*(f for f in state.failovers if f.slot not in heirs), *started),
        finished=tuple(node for node in state.finished if node not in owing),
        stop_ready=tuple(entry for entry in state.stop_ready if entry[0] != leaver),
    )
    effects: list[Effect] = []
    for slot, to in heirs.items():
        effects.append(Promote(to=to, slot=slot, victim=leaver))
        effects.append(Resend(to=OTHERS, slot=slot, owner=to))
    words = [f"its shadow {to} takes over {name_slots(state, (s,))}" for s, to in heirs.items()]
    words = words or ["it had replicas only"]
    after, stays = take_back_drains(after)
    if after.stop_reason is None:
        return after, (*effects, *stays), listed(words)
    after, stop_effects, stop_words = settle_stop(after)  # the leaver's answer is not waited for
    return after, (*effects, *stays, *stop_effects), listed(words) + stop_words


def heir(state: State, assignment: Assignment, slot: Slot) -> NodeId | None:
    """The live node that holds the replica of `slot` and would take it over, or None."""
    shadow = assignment.shadow(slot)
    node = None if shadow is None else state.node(shadow)
    return node.id if node is not None and node.status.live else None


def assigned(state: State) -> Assignment:
    """The assignment of the state. Raises CoreMisuse when there is none."""
    if state.assignment is None:
        raise CoreMisuse(f"run {state.run} has no assignment while {state.phase}")
    return state.assignment


def settled_phase(state: State) -> Phase:
    """The phase that follows from the assignment, the failovers and the redundancy of a state."""
    if state.reconfiguration is not None:
        return state.phase
    if state.failovers:
        return Phase.FAILING_OVER
    if state.redundancy in BARE_MODES:
        return Phase.RUNNING
    assignment = assigned(state)
    bare = any(assignment.shadows[number] is None for number in assignment.roles.astray)
    return Phase.DEGRADED if bare else Phase.RUNNING


def _sure_heir(state: State, assignment: Assignment, slot: Slot) -> NodeId:
    to = heir(state, assignment, slot)
    if to is None:
        raise CoreMisuse(f"slot {slot} has no live shadow to pass it on to")
    return to


def take_back_drains(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Make draining nodes members again if one of their shadows does not stay."""
    assignment = assigned(state)
    effects: list[Effect] = []
    for node in state.roll.aside:
        if node.status is not NodeStatus.DRAINING:
            continue
        to = (assignment.shadow(slot) for slot in assignment.owned_by(node.id))
        if any(shadow not in state.roll.usable for shadow in to):
            state = with_status(state, NodeStatus.MEMBER, node.id)
            effects.append(Stay(to=node.id))
    return state, tuple(effects)
