"""Decides how a run ends: the agreement on the last step, the final reports of the members, and
numbers that are not finite.

Rule: a run ends once. The end tells every live node to leave and the fleet to end all instances.
"""

from dataclasses import replace

from bamboo.core.effects import Effect, HoldForStop, StopAt
from bamboo.core.events import NodeFinished, NonFinite, StopReady, StopRequested
from bamboo.core.state import Outcome, State
from bamboo.core.transition import (
    Transition,
    acting_member,
    acts,
    away,
    begun_words,
    boundary_words,
    changed,
    describe,
    end,
    live_members,
    name_slots,
    stale,
)
from bamboo.errors import CoreMisuse


def request_stop(state: State, event: StopRequested) -> Transition:
    """Ask every member which step it has begun. Without members the run ends at once."""
    if event.outcome not in (Outcome.STOPPED, Outcome.BUDGET):
        raise CoreMisuse(f"a stop cannot end a run as {event.outcome}; say RunFailed instead")
    # A run that waits for nodes need not come to the step at which evaluations end it.
    waits = state.reconfiguration is not None and state.stop_outcome is Outcome.DONE
    if state.stop_reason is not None and not waits:
        return stale(state, f"a stop is under way already: {state.stop_reason}")
    asked = replace(state, stop_reason=event.reason, stop_outcome=event.outcome, stop_at_step=None)
    if state.assignment is None:
        reason = f"stopped before training began: {event.reason}"
        return end(asked, event.outcome, reason)
    if state.reconfiguration is not None:  # `settle` ends the run if it waits for nodes
        return changed(asked, (), f"stopping once all go on again: {event.reason}")
    effects = (HoldForStop(to=node.id) for node in live_members(state))
    reason = f"stopping at the next step that all can finish: {event.reason}"
    return changed(asked, effects, reason)


def answer_stop(state: State, event: StopReady) -> Transition:
    """Note the last step that a member has begun. The last answer fixes the step after which all
    stop."""
    node = acting_member(state, event.node, "StopReady")
    if not acts(node):
        return stale(state, f"{event.node} {away(node)}: its answer does not count")
    if state.stop_reason is None:
        raise CoreMisuse(f"StopReady from {event.node}, but nobody asked for a stop")
    if any(answered == event.node for answered, _ in state.stop_ready):
        return stale(state, f"{event.node} has answered the stop already")
    noted = replace(state, stop_ready=(*state.stop_ready, (event.node, event.step)))
    settled, effects, words = settle_stop(noted)
    waiting = len(live_members(noted)) - len(noted.stop_ready)
    words = words or f"; waiting for {waiting} more"
    reason = f"{describe(state, event.node)} {begun_words(event.step, words)}"
    return changed(settled, effects, reason)


def settle_stop(state: State) -> tuple[State, tuple[Effect, ...], str]:
    """Fix the last step of a stop that was asked for, once every live member has answered.

    Returns the state, the effects, and words to append to the reason. While answers are missing, or
    once the step is fixed, it returns the state unchanged, no effects and "".
    """
    members = live_members(state)
    answered = {node for node, _ in state.stop_ready}
    if state.stop_at_step is not None:
        return state, (), ""
    if not all(node.id in answered for node in members):
        return state, (), ""
    step = max(step for _, step in state.stop_ready)
    effects = tuple(StopAt(to=node.id, step=step) for node in members)
    return replace(state, stop_at_step=step), effects, boundary_words(step)


def finish_node(state: State, event: NodeFinished) -> Transition:
    """Note that a member has written the final state of all that it owns. The last one ends the
    run."""
    node = acting_member(state, event.node, "NodeFinished")
    if not acts(node):
        return stale(state, f"{event.node} {away(node)}: its report does not count")
    if event.node in state.finished:
        return stale(state, f"{event.node} has finished already")
    behind = [f.slot for f in state.failovers if f.successor == event.node]
    if behind:
        # It reported before it knew of its promotion, so it has not written these slots.
        names = name_slots(state, behind)
        return stale(state, f"{event.node} has yet to catch up with {names}, then finish again")
    noted = replace(state, finished=(*state.finished, event.node))
    owners = frozenset() if state.assignment is None else frozenset(state.assignment.owners)
    missing = owners.difference(noted.finished)
    reason = f"{describe(state, event.node)} finished step {event.step}"
    if missing:
        return changed(noted, (), f"{reason}; waiting for {len(missing)} more")
    if state.stop_at_step is None or state.stop_outcome is None:
        return end(noted, Outcome.DONE, f"{reason}, the last one: the run is done")
    where = "at a step boundary"
    if state.stop_outcome is Outcome.DONE:
        where = f"after step {state.stop_at_step}, and the run is done"
    reason = f"{state.stop_reason}: all stopped {where}"
    return end(noted, state.stop_outcome, reason)


def report_non_finite(state: State, event: NonFinite) -> Transition:
    """End the run because a number is not finite: no later step could be right."""
    node = acting_member(state, event.node, "NonFinite")
    if not acts(node):
        return stale(state, f"{event.node} {away(node)}: its report does not count")
    where = describe(state, event.node)
    reason = f"step {event.step}: {event.what} of layer {event.layer} is not finite, says {where}"
    return end(state, Outcome.FAULT, reason)
