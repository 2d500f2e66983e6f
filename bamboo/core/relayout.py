"""When another layout is wanted: nobody comes any more, more have come, or nothing moves.

Rule: here is only found that everything is to be laid out anew, and in which way all stop for it;
what comes of it is decided in `reform` once they have. Where nobody is in a hurry, what will be
lacking is sent `ahead` first, so that nobody stands still for it.
"""

from dataclasses import replace

from bamboo.core.ahead import prepare, whole_of
from bamboo.core.answers import answers
from bamboo.core.ending import end
from bamboo.core.events import Reconsider, Stalled
from bamboo.core.place import grid_for, layout_for
from bamboo.core.policy import Policy
from bamboo.core.reform import (
    at_rest,
    begin_reform,
    void_member,
)
from bamboo.core.settle import usable_nodes, usable_number
from bamboo.core.state import Node, NodeStatus, Outcome, Preparing, State
from bamboo.core.transition import Transition, changed, stale
from bamboo.core.words import ENOUGH, grid_words, why_words
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout
from bamboo.topology.strategy import BARE_MODES

WORTH = 0.97
"""Of the step time of now: a layout is changed for a better one only if its steps take no more."""


def reconsider(state: State, event: Reconsider, policy: Policy) -> Transition:
    """Somebody holds that the layout does not suit those who are there."""
    if not policy.elastic or state.assignment is None:
        return stale(state, "there is no other layout to be had")
    reform = state.reform
    if reform is not None:
        if reform.base is not None or reform.forced:
            return stale(state, "that is being done already")
        after = replace(state, reform=replace(reform, forced=True))
        return changed(after, (), f"{event.reason}: go on with those who are there")
    if not at_rest(state):
        return stale(state, "something else is under way; say it again")
    better = layout_for(usable_number(state), policy)
    ahead = state.preparing
    if ahead is None and not _differs(state, better):
        return stale(state, f"{grid_words(state.grid)} suits the {len(state.roll.live)} nodes best")
    if ahead is None:
        ahead = _prepared_for(state, better, policy, why=event.reason, forced=True)
        if ahead.feeds and not _leaving(state):
            after = replace(state, preparing=ahead)
            return changed(after, (), f"{event.reason}: {_ahead_words(ahead)}")
    after, orders = begin_reform(
        state, why=ahead.why, planned=True, forced=ahead.forced, ahead=whole_of(ahead)
    )
    return changed(after, orders, f"{event.reason}: a new layout at the next boundary")


def break_stall(state: State, event: Stalled, policy: Policy) -> Transition:
    """What one waits for went with several nodes at once, and no copy of theirs can repeat it: all
    stop and do the step again from what they hold. A second stall in one step ends the run."""
    if (why := void_member(state, event.node)) is not None:
        return stale(state, why)
    if event.era != state.era or state.reform is not None:
        return stale(state, "the layout is another one by now")
    again = state.stalled_step is not None and abs(event.step - state.stalled_step) <= 1
    if state.finished or not policy.elastic or again:
        return end(state, Outcome.FAULT, event.reason)
    noted = replace(state, stalled_step=event.step)
    after, orders = begin_reform(noted, why=event.reason, planned=False)
    return changed(after, orders, f"{event.reason}; all stop and do the step again")


def improve(before: State, decided: Transition, policy: Policy) -> Transition:
    """Begin a reconfiguration when there are nodes for another pipeline or for all stages, or when
    nodes with a notice can go that have no shadows to hand over to. Who will hold more is sent it
    first, unless somebody is about to go."""
    state = decided.state
    if state is before or not policy.elastic:
        return decided
    known = state.preparing
    if not at_rest(state):
        return _without_preparing(decided)
    same = state.nodes is before.nodes and state.assignment is before.assignment
    if known is None or not same:
        forced = _is_forced(state, policy)
        why = known.why if known is not None and forced else _wanted(state, policy)
        if not why:
            return _without_preparing(decided)
        better = layout_for(usable_number(state), policy)
        ahead = _prepared_for(state, better, policy, why=why, forced=forced)
        if ahead.feeds and ahead == known and not _leaving(state):
            return decided
    else:
        ahead = known
    if not _leaving(state) and answers(ahead.prepared).silent(ahead.receivers):
        if ahead is known:
            return decided
        reason = f"{decided.reason}; {_why(state, ahead, policy)}: {_ahead_words(ahead)}"
        return replace(decided, state=state.having(preparing=ahead), reason=reason)
    after, orders = begin_reform(
        state, why=ahead.why, planned=True, forced=ahead.forced, ahead=whole_of(ahead)
    )
    after = after.having(generation=before.generation + 1)
    reason = f"{decided.reason}; {_why(state, ahead, policy)}: a new layout at the next boundary"
    return Transition(state=after, effects=(*decided.effects, *orders), reason=reason)


def _prepared_for(
    state: State, layout: ModelLayout, policy: Policy, *, why: str, forced: bool
) -> Preparing:
    return prepare(state, usable_nodes(state), layout, policy, why=why, forced=forced)


def _without_preparing(decided: Transition) -> Transition:
    """Nothing is sent ahead any more."""
    if decided.state.preparing is None:
        return decided
    state = decided.state.having(preparing=None)
    return replace(decided, state=state, reason=f"{decided.reason}; nothing is sent ahead now")


def _why(state: State, ahead: Preparing, policy: Policy) -> str:
    return why_words(ahead.why, grid_for(usable_number(state), policy))


def _ahead_words(ahead: Preparing) -> str:
    count = len(ahead.receivers)
    nodes = f"{count} node{'' if count == 1 else 's'}"
    return f"a new layout once {nodes} {'has' if count == 1 else 'have'} been sent what it needs"


def _differs(state: State, better: ModelLayout) -> bool:
    """Whether another layout than the one of now is meant."""
    return (better.grid, better.cut) != (state.grid, state.cut or better.cut)


def _is_forced(state: State, policy: Policy) -> bool:
    """Whether the layout that is being prepared was asked for, and is another one still."""
    asked = state.preparing is not None and state.preparing.forced
    return asked and _differs(state, layout_for(usable_number(state), policy))


def _leaving(state: State) -> list[Node]:
    """Nodes with a part in the run that are about to go."""
    return [n for n in state.roll.aside if n.status is not NodeStatus.READY and not n.usable]


def _wanted(state: State, policy: Policy) -> str:
    """Why another layout is wanted now, "" if none is."""
    better = grid_for(usable_number(state), policy)
    if _is_worth_it(state.grid, better, policy):
        return ENOUGH
    if state.redundancy not in BARE_MODES or len(state.roll.usable) < policy.stages:
        return ""
    if _is_merged(state) and usable_number(state) >= state.grid.size:
        # No shadow of the newcomer's ever takes a slot over: without any, it would stay idle.
        return f"there are nodes for every stage of {grid_words(state.grid)}"
    leaving = _leaving(state)
    return f"{len(leaving)} nodes with a notice can go" if leaving else ""


def _is_merged(state: State) -> bool:
    """Whether a node runs two slots."""
    assignment = state.assignment
    return assignment is not None and len(set(assignment.owners)) < state.grid.size


def _is_worth_it(now: Grid, better: Grid, policy: Policy) -> bool:
    """Whether a larger grid is to be had that is worth all stopping for it."""
    if better.size <= now.size:
        return False
    now_s = policy.step_s(now.pipelines, now.stages)
    better_s = policy.step_s(better.pipelines, better.stages)
    if now_s is not None and better_s is not None:
        return better_s <= WORTH * now_s
    whole = better.stages == policy.stages
    return whole and (better.pipelines > now.pipelines or better.stages > now.stages)
