"""A reconfiguration: all nodes stop, report what they hold, fetch what they lack, and go on in a
new layout.

    begun  ->  if planned: a boundary is agreed, its step finished  ->  all report what they hold
    ->  base, layout and assignment are decided  ->  all have what they should hold  ->  all go on

It serves everything that a shadow cannot: more or fewer pipelines, fewer stages, a stage that only
another pipeline still has, a restore from a checkpoint, waiting for nodes.

Rules. (1) The state before a step is the same bits wherever it lies. So the base is the newest step
for which every layer is found somewhere, on a live node or in a checkpoint. (2) A loss on the way
begins another round, in which everything that is still there counts. (3) Nothing waits for a node
that is gone.

This module also finds when a reconfiguration is wanted: no further node comes, more nodes have
come, or a step stalls. Unless a node is about to go, what will be lacking is prefetched first,
while all train.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import chain

from bamboo.core.base import held_at, holders
from bamboo.core.effects import (
    FLEET,
    AgreeBoundary,
    Effect,
    End,
    GoOn,
    HoldForStop,
    Quiesce,
    QuiesceAfter,
    TerminateInstance,
)
from bamboo.core.events import BoundaryReady, LayoutBuilt, Quiesced, Reconsider, Stalled
from bamboo.core.layout.layout_choice import grid_for, layout_for
from bamboo.core.prefetch import fed_layers, prepare, whole_of
from bamboo.core.rounds import answers
from bamboo.core.saving.keep import left_words, without
from bamboo.core.settle import usable_nodes, usable_number
from bamboo.core.state import (
    Built,
    Node,
    NodeStatus,
    Outcome,
    Phase,
    Policy,
    Preparing,
    Reconfiguration,
    Report,
    State,
)
from bamboo.core.transition import (
    ENOUGH,
    Transition,
    begun_words,
    boundary_words,
    changed,
    end,
    grid_words,
    live_members,
    sent_words,
    stale,
    why_words,
    with_status,
)
from bamboo.ids import NodeId
from bamboo.quantities import size
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout
from bamboo.topology.strategy import BARE_MODES


def begin_reconfiguration(
    state: State,
    *,
    why: str,
    planned: bool,
    forced: bool = False,
    intact: bool = False,
    ahead: Preparing | None = None,
    save: bool = False,
) -> tuple[State, tuple[Effect, ...]]:
    """Begin a round of a reconfiguration; returns the state and the effects.

    `planned`: the step is finished first. `forced`: go on with however few nodes there are.
    `intact`: no state is lost that any node held; true of every planned one. `ahead`: what was
    prefetched for it. `save`: state that no staying node holds is stored first; this also holds for
    later rounds.
    """
    since = state.version + 1
    if planned and ahead is None and state.preparing is not None:
        ahead = whole_of(state.preparing)  # another reason came first; what was prefetched counts
    asked = tuple(node.id for node in state.live_nodes())
    draining = [n.id for n in state.roll.aside if n.status is NodeStatus.DRAINING]
    # After a loss no node is given back: it, and what it holds, may be needed.
    kept = () if planned else (replace(n, released=False) for n in state.roll.aside if n.released)
    after = replace(
        with_status(state.with_nodes(*kept), NodeStatus.MEMBER, *draining),
        generation=state.generation + 1,
        phase=Phase.RECONFIGURING,
        failovers=(),
        transfers=(),
        moves=(),
        preparing=None,
        finished=(),
        stop_ready=(),
        stop_at_step=None,
        saving=(),
        reconfiguration=Reconfiguration(
            since=since,
            why=why,
            planned=planned,
            intact=planned or intact,
            asked=asked,
            owners=_owners(state),
            forced=forced,
            ahead=ahead,
            save=save or (state.reconfiguration is not None and state.reconfiguration.save),
        ),
    )
    kind = AgreeBoundary if planned else Quiesce
    return after, tuple(kind(to=node, since=since) for node in asked)


def _owners(state: State) -> tuple[NodeId, ...]:
    """The nodes that own a slot; in a later round, those that did before the first round."""
    if state.reconfiguration is not None:
        return state.reconfiguration.owners
    return () if state.assignment is None else tuple(sorted(set(state.assignment.owners)))


def can_recover(state: State, policy: Policy) -> bool:
    """Whether the state of a slot without a live copy may be found elsewhere."""
    if not policy.elastic:
        return False
    peers = state.grid.pipelines > 1 and state.redundancy != "off"
    return peers or policy.checkpoint_every > 0 or bool(state.checkpoints)


def lose_while_reconfiguring(
    state: State, node: NodeId, effects: tuple[Effect, ...], words: str, policy: Policy
) -> Transition:
    """A node is lost during a reconfiguration; its status is changed already."""
    reconfiguration = _reconfiguration(state)
    needed = state.assignment is not None and state.assignment.roles.has(node)
    report = next((r for r in reconfiguration.reports if r.node == node), None)
    if reconfiguration.keep is not None:
        keep = without(state, node, policy)
        if keep is not None:
            held = report is not None and _held_alone(reconfiguration, report)
            reconfiguration = replace(
                reconfiguration, keep=keep, intact=reconfiguration.intact and not held
            )
            return changed(
                state.having(reconfiguration=reconfiguration),
                effects,
                f"{words}; {left_words(keep)}",
            )
        reconfiguration = replace(reconfiguration, keep=None)
        state = state.having(reconfiguration=reconfiguration)
        words += "; nobody else has what it was to store"
    if reconfiguration.base is None:
        # If planned, a node without a slot holds prefetched layers only, which others hold too.
        held = (
            needed
            if report is None or reconfiguration.planned
            else _held_alone(reconfiguration, report)
        )
        if not reconfiguration.planned:
            after = state.having(
                reconfiguration=replace(reconfiguration, intact=reconfiguration.intact and not held)
            )
            return changed(after, effects, words)  # `settle` goes on without it
        if not held:
            asked = tuple(other for other in reconfiguration.asked if other != node)
            after, orders, more = _fix_boundary(state, replace(reconfiguration, asked=asked))
            return changed(after, (*effects, *orders), f"{words}; it held nothing{more}")
    else:
        asked_of = report is not None and bool(report.holdings)  # else it came later, empty
        if not asked_of and not needed:
            return changed(state, effects, f"{words}; it held nothing and gets nothing")
        held = report is not None and _held_alone(reconfiguration, report, state.roll.live)
    after, orders = begin_reconfiguration(
        state,
        why=reconfiguration.why,
        planned=False,
        forced=reconfiguration.forced,
        intact=reconfiguration.intact and not held,
        ahead=reconfiguration.ahead,
    )
    return changed(after, (*effects, *orders), f"{words}; every node stops where it is")


# ---------------------------------------------------------------- what the nodes say


def agree_boundary(state: State, event: BoundaryReady) -> Transition:
    """Note a node's answer. The last answer fixes the step that all finish before they stop."""
    if (why := _void(state, event.node, event.since)) is not None:
        return stale(state, why)
    reconfiguration = _reconfiguration(state)
    if answers(reconfiguration.ready).has(event.node):
        return stale(state, f"{event.node} has answered already")
    ready = answers(reconfiguration.ready).having((event.node, event.step))
    noted = replace(reconfiguration, ready=ready)
    after, orders, words = _fix_boundary(state, noted)
    reason = f"node {event.node} {begun_words(event.step, words)}"
    return changed(after, orders, reason)


def _fix_boundary(
    state: State, reconfiguration: Reconfiguration
) -> tuple[State, tuple[Effect, ...], str]:
    """Store the reconfiguration, and fix its boundary if all nodes that are asked have answered."""
    after = state.having(reconfiguration=reconfiguration)
    if reconfiguration.boundary is not None:
        return after, (), ""
    waiting = answers(reconfiguration.ready).silent(reconfiguration.asked)
    if waiting or not reconfiguration.asked:
        return after, (), f"; waiting for {len(waiting)} more"
    step_of = dict(reconfiguration.ready)
    step = max(step_of[node] for node in reconfiguration.asked)
    orders = tuple(
        QuiesceAfter(to=to, since=reconfiguration.since, step=step) for to in reconfiguration.asked
    )
    after = state.having(reconfiguration=replace(reconfiguration, boundary=step))
    return after, orders, boundary_words(step)


def note_holdings(state: State, event: Quiesced) -> Transition:
    """Note what a node holds that has stopped. Once all have stopped, `settle` decides."""
    if (why := _void(state, event.node, event.since)) is not None:
        return stale(state, why)
    reconfiguration = _reconfiguration(state)
    if answers(reconfiguration.reports).has(event.node):
        return stale(state, f"{event.node} has said what it holds already")
    reports = answers(reconfiguration.reports).having(report_of(event))
    after = state.having(reconfiguration=replace(reconfiguration, reports=reports))
    layers = sum(h.stop - h.first for h in event.holdings)
    return changed(after, (), f"node {event.node} has stopped and holds {layers} layers")


def report_of(event: Quiesced) -> Report:
    """The event of a node that has stopped, as the state keeps it."""
    return Report(node=event.node, holdings=event.holdings, norms=event.norms)


def note_built(state: State, event: LayoutBuilt) -> Transition:
    """Note that a node has all that it should hold. After the last one all go on."""
    reconfiguration, assignment = state.reconfiguration, state.assignment
    if (
        reconfiguration is None
        or reconfiguration.since != event.since
        or reconfiguration.base is None
    ):
        return stale(state, f"{event.node} reports on a reconfiguration that is over")
    if assignment is None or not _is_live(state, event.node):
        return stale(state, f"{event.node} is away: its report does not count")
    if answers(reconfiguration.rebuilt).has(event.node):
        return stale(state, f"{event.node} has said so already")
    rebuilt = answers(reconfiguration.rebuilt).having(Built(node=event.node, bytes=event.bytes))
    noted = state.having(reconfiguration=replace(reconfiguration, rebuilt=rebuilt))
    missing = rebuilt.silent(assignment.members())
    reason = f"node {event.node} has what it is to hold, {sent_words(event.bytes)} to it"
    if missing:
        return changed(noted, (), f"{reason}; waiting for {len(missing)} more")
    after, effects = _go_on(noted, reconfiguration.base)
    moved = sum(one.bytes for one in rebuilt)
    reason = (
        f"all go on from step {reconfiguration.base} on {grid_words(after.grid)}: "
        f"{why_words(reconfiguration.why, after.grid)}; {sent_words(moved)}"
    )
    if before := reconfiguration.ahead.prepared_bytes if reconfiguration.ahead is not None else 0:
        reason += f", {size(before)} before"
    return changed(after, effects, reason)


# ---------------------------------------------------------------- all go on


def _go_on(state: State, base: int) -> tuple[State, tuple[Effect, ...]]:
    """All nodes have what they should hold: end the reconfiguration and let them train."""
    assignment = state.assignment
    assert assignment is not None
    roles = assignment.members()
    effects: list[Effect] = [
        GoOn(to=node.id, step=base) for node in state.live_nodes() if node.id in roles
    ]
    idle = [node for node in state.live_nodes() if node.id not in roles]
    leaving = [node.id for node in idle if not node.usable]
    effects += [End(to=node) for node in leaving]
    effects += [give_back(node) for node in idle if node.released]
    state = with_status(state, NodeStatus.LEFT, *leaving)
    state = with_status(state, NodeStatus.READY, *(node.id for node in idle if node.usable))
    after = state.having(reconfiguration=None, generation=state.generation + 1)
    if after.stop_reason is not None:
        effects += [HoldForStop(to=node.id) for node in live_members(after)]
    return after, tuple(effects)


def give_back(node: Node) -> TerminateInstance:
    """The effect that ends the instance of a released node."""
    return TerminateInstance(to=FLEET, instance=node.instance, reason="its node was released")


def at_rest(state: State) -> bool:
    """Whether the run trains and nothing else is under way."""
    busy = (state.reconfiguration, state.failovers, state.transfers, state.moves, state.finished)
    training = state.phase in (Phase.RUNNING, Phase.DEGRADED)
    return training and not any(busy) and state.stop_reason is None


def _held_alone(
    reconfiguration: Reconfiguration, report: Report, live: Collection[NodeId] = ()
) -> bool:
    """Whether a node held layers that were not prefetched to it. Once a base is decided, only
    layers at the base count, and only those that none of `live` holds too."""
    held = set(chain.from_iterable(range(h.first, h.stop) for h in report.holdings))
    if reconfiguration.base is not None:
        held &= held_at(report, reconfiguration.base, reconfiguration.total_square)
        held -= {
            layer for layer, nodes in holders(reconfiguration).items() if set(nodes) & set(live)
        }
    return not fed_layers(reconfiguration.ahead, report.node).issuperset(held)


def _is_live(state: State, node: NodeId) -> bool:
    found = state.node(node)
    return found is not None and found.status.live


def _void(state: State, node: NodeId, since: int) -> str | None:
    """Why a report about this reconfiguration does not count, or None if it does."""
    if state.reconfiguration is None or state.reconfiguration.since != since:
        return f"{node} reports on a reconfiguration that is over"
    return void_member(state, node)


def void_member(state: State, node: NodeId) -> str | None:
    """Why a report of this node does not count, or None if it does."""
    return None if _is_live(state, node) else f"{node} is away: its report does not count"


def _reconfiguration(state: State) -> Reconfiguration:
    assert state.reconfiguration is not None, "asked only while a reconfiguration is under way"
    return state.reconfiguration


WORTH = 0.97
"""The layout changes for a better one only if its steps take at most this share of the present
time."""


def reconsider(state: State, event: Reconsider, policy: Policy) -> Transition:
    """Reconfigure, or prefetch for it, if another layout suits the nodes that are there better."""
    if not policy.elastic or state.assignment is None:
        return stale(state, "no other layout is possible")
    reconfiguration = state.reconfiguration
    if reconfiguration is not None:
        if reconfiguration.base is not None or reconfiguration.forced:
            return stale(state, "that is being done already")
        after = replace(state, reconfiguration=replace(reconfiguration, forced=True))
        return changed(after, (), f"{event.reason}: go on with the nodes that are there")
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
    after, orders = begin_reconfiguration(
        state, why=ahead.why, planned=True, forced=ahead.forced, ahead=whole_of(ahead)
    )
    return changed(after, orders, f"{event.reason}: a new layout at the next boundary")


def break_stall(state: State, event: Stalled, policy: Policy) -> Transition:
    """A member waits for a message that was lost with several nodes at once and that no copy can
    repeat: all stop and do the step again from what they hold. Another stall within one step of it
    ends the run."""
    if (why := void_member(state, event.node)) is not None:
        return stale(state, why)
    if event.era != state.era or state.reconfiguration is not None:
        return stale(state, "the layout is another one by now")
    again = state.stalled_step is not None and abs(event.step - state.stalled_step) <= 1
    if state.finished or not policy.elastic or again:
        return end(state, Outcome.FAULT, event.reason)
    noted = replace(state, stalled_step=event.step)
    after, orders = begin_reconfiguration(noted, why=event.reason, planned=False)
    return changed(after, orders, f"{event.reason}; all stop and do the step again")


def improve(before: State, decided: Transition, policy: Policy) -> Transition:
    """Begin a reconfiguration when there are nodes for another pipeline or for all stages, or when
    nodes with a notice can go that have no shadows to hand over to. What nodes will lack is
    prefetched first, unless a node is about to go."""
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
    after, orders = begin_reconfiguration(
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
    """End the prefetch."""
    if decided.state.preparing is None:
        return decided
    state = decided.state.having(preparing=None)
    return replace(decided, state=state, reason=f"{decided.reason}; nothing is prefetched now")


def _why(state: State, ahead: Preparing, policy: Policy) -> str:
    return why_words(ahead.why, grid_for(usable_number(state), policy))


def _ahead_words(ahead: Preparing) -> str:
    count = len(ahead.receivers)
    nodes = f"{count} node{'' if count == 1 else 's'}"
    return f"a new layout once {nodes} {'has' if count == 1 else 'have'} been sent what it needs"


def _differs(state: State, better: ModelLayout) -> bool:
    """Whether `better` is another layout than the present one."""
    return (better.grid, better.cut) != (state.grid, state.cut or better.cut)


def _is_forced(state: State, policy: Policy) -> bool:
    """Whether the layout that is being prepared was asked for and still differs from the
    present."""
    asked = state.preparing is not None and state.preparing.forced
    return asked and _differs(state, layout_for(usable_number(state), policy))


def _leaving(state: State) -> list[Node]:
    """The nodes with a role in the run that are about to go."""
    return [n for n in state.roll.aside if n.status is not NodeStatus.READY and not n.usable]


def _wanted(state: State, policy: Policy) -> str:
    """Why another layout is wanted now; "" if none is."""
    better = grid_for(usable_number(state), policy)
    if _is_worth_it(state.grid, better, policy):
        return ENOUGH
    if state.redundancy not in BARE_MODES or len(state.roll.usable) < policy.stages:
        return ""
    if _is_merged(state) and usable_number(state) >= state.grid.size:
        # Without shadows a newcomer cannot take a slot by a move, so it would stay idle.
        return f"there are nodes for every stage of {grid_words(state.grid)}"
    leaving = _leaving(state)
    return f"{len(leaving)} nodes with a notice can go" if leaving else ""


def _is_merged(state: State) -> bool:
    """Whether a node owns several slots."""
    assignment = state.assignment
    return assignment is not None and len(set(assignment.owners)) < state.grid.size


def _is_worth_it(now: Grid, better: Grid, policy: Policy) -> bool:
    """Whether `better` is a larger grid that is worth stopping all nodes."""
    if better.size <= now.size:
        return False
    now_s = policy.step_s(now.pipelines, now.stages)
    better_s = policy.step_s(better.pipelines, better.stages)
    if now_s is not None and better_s is not None:
        return better_s <= WORTH * now_s
    whole = better.stages == policy.stages
    return whole and (better.pipelines > now.pipelines or better.stages > now.stages)
