"""A reconfiguration: all nodes stop, report what they hold, fetch what they lack, and go on in a
new layout.

    begun  ->  if planned: a boundary is agreed, its step finished  ->  all report what they hold
    ->  base, layout and assignment are decided  ->  all have what they should hold  ->  all go on

It serves everything that a shadow cannot: more or fewer pipelines, fewer stages, a stage that only
another pipeline still has, a restore from a checkpoint, waiting for nodes. When one is wanted is
decided in `next_layout`.

Rules. (1) The state before a step is the same bits wherever it lies. So the base is the newest step
for which every layer is found somewhere, on a live node or in a checkpoint. (2) A loss on the way
begins another round, in which everything that is still there counts. (3) Nothing waits for a node
that is gone. (4) Nodes whose state has a home go on at once. Nodes that wait for others, or that
will be taken, take no step beyond what is stored. When no step is left to train, all write the
final state while they are there.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import chain

from bamboo.core.effects import (
    FLEET,
    AgreeBoundary,
    Effect,
    End,
    GoOn,
    HoldForStop,
    Quiesce,
    QuiesceAfter,
    StopAt,
    TerminateAll,
    TerminateInstance,
)
from bamboo.core.events import BoundaryReady, LayoutBuilt, Quiesced
from bamboo.core.keep import begin_keep, is_kept, left_words, without
from bamboo.core.layout import layout_for, place
from bamboo.core.rounds import Base, answers, fed_layers, held_at, holders, whole_of
from bamboo.core.state import (
    Built,
    Checkpoint,
    Keep,
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
        stop_at_step=state.stop_at_step if _ends_evaluated(state) else None,
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


# ---------------------------------------------------------------- base, layout and assignment


def find_base(state: State, policy: Policy) -> Base | None:
    """Find the newest step for which every layer is there; None if there is no such step."""
    reconfiguration = state.reconfiguration
    assert reconfiguration is not None, "asked only while a reconfiguration is under way"
    live = reconfiguration.intact or state.redundancy != "off"
    holdings = [h for r in reconfiguration.reports for h in r.holdings] if live else []
    norms = {n.step: n.total_square for r in reconfiguration.reports for n in r.norms}
    kept = {checkpoint.step for checkpoint in checkpoints_of(state, policy)}
    for step in sorted({h.step for h in holdings} | {h.reach for h in holdings} | kept)[::-1]:
        norm = norms.get(step - 1)
        layers: set[int] = set()
        for h in holdings:
            if h.step == step or (h.reach == step and norm is not None):
                layers.update(range(h.first, h.stop))
        if len(layers) == policy.cuts[0][-1]:
            return Base(step=step, checkpoint=False, total_square=norm)
        if step in kept:
            return Base(step=step, checkpoint=True, total_square=norm)
    return None


def checkpoints_of(state: State, policy: Policy) -> tuple[Checkpoint, ...]:
    """The complete checkpoints. A run that writes checkpoints can also begin again from step 0."""
    start = (Checkpoint(step=0, era=0),) if policy.checkpoint_every > 0 else ()
    return (*start, *state.checkpoints)


def settle(before: State, decided: Transition, policy: Policy) -> Transition:
    """Decide base, layout and assignment once all nodes that are left have reported."""
    state, reconfiguration = decided.state, decided.state.reconfiguration
    if state is before or reconfiguration is None or reconfiguration.base is not None:
        return decided
    if reconfiguration.keep is not None:
        return decided
    live = state.roll.live
    if waiting := answers(reconfiguration.reports).silent(reconfiguration.asked, live):
        return _with(decided, state, f"waiting for {len(waiting)} to stop")
    reports = tuple(report for report in reconfiguration.reports if report.node in live)
    state = state.having(reconfiguration=replace(reconfiguration, reports=reports))
    base = find_base(state, policy)
    if base is None:
        words = "no step is left of which every layer is there, and there is no checkpoint"
        return _end_here(decided, state, Outcome.UNRECOVERABLE, words)
    if reconfiguration.save and base.step == 0:
        state = _begun_anew(state)
    kept = reconfiguration.save and is_kept(state.checkpoints, base.step)
    if reconfiguration.save and not kept:
        era = _next(before)
        keep = begin_keep(state, _reconfiguration(state), base, policy, era=era)
        if keep is not None:
            state = state.having(
                generation=era, reconfiguration=replace(_reconfiguration(state), keep=keep)
            )
            return _with(decided, state, _keep_words(keep))
    nodes = usable_nodes(state)
    steps = 1 + (state.stop_at_step or 0) if _ends_evaluated(state) else policy.steps
    over = 0 < steps <= base.step
    if kept and not state.roll.usable and not over:
        nodes = ()  # nodes that will be taken train no more: their steps would not be stored
    stored = base.checkpoint or kept
    short = stored and len(nodes) < policy.stages and not (reconfiguration.forced or over)
    if not nodes or short:
        if state.stop_outcome is not None and not _ends_evaluated(state):
            words = f"stopped while it waits for nodes: {state.stop_reason}"
            return _end_here(decided, state, state.stop_outcome, words)
        # `forced` was meant for the nodes that were there then; now there are none.
        forced = reconfiguration.forced and bool(nodes)
        held = replace(_reconfiguration(state), checkpoint=base.checkpoint, forced=forced)
        phase = Phase.RESTORING if base.checkpoint else Phase.RECONFIGURING
        state = state.having(reconfiguration=held, phase=phase)
        return _with(decided, state, f"waiting for nodes: {len(nodes)} of {policy.stages} are here")
    after, words = _lay_out(state, base, policy, generation=_next(before))
    return _with(decided, after, words)


def usable_nodes(state: State) -> tuple[Node, ...]:
    """The nodes that may be given slots: live nodes that are not leaving; else those that the cloud
    leaves here, which were to be given back; else all live nodes."""
    usable = state.roll.usable
    return tuple(n for n in state.nodes if n.id in usable) or _at_last(state)


def usable_number(state: State) -> int:
    """The number of `usable_nodes`."""
    return len(state.roll.usable) or len(_at_last(state))


def _at_last(state: State) -> tuple[Node, ...]:
    """The nodes that may be given slots where all live nodes are leaving."""
    live = state.live_nodes()
    return tuple(node for node in live if node.notice_deadline_s is None) or live


def _lay_out(state: State, base: Base, policy: Policy, *, generation: int) -> tuple[State, str]:
    """Make the state with a new layout, whose era is `generation`, and words for it."""
    reconfiguration, nodes = _reconfiguration(state), usable_nodes(state)
    layout = layout_for(len(nodes), policy)
    if reconfiguration.shares and layout.grid == state.grid:
        layout = replace(layout, shares=reconfiguration.shares)
    held = {r.node: held_at(r, base.step, base.total_square) for r in reconfiguration.reports}
    assignment = place(nodes, layout, held, state.redundancy, apart=policy.apart)
    roles = assignment.members()
    # A released node is needed after all only where no others are left.
    needed = (replace(n, released=False) for n in nodes if n.released and n.id in roles)
    after = replace(
        with_status(
            state.with_nodes(*needed), NodeStatus.MEMBER, *(n.id for n in nodes if n.id in roles)
        ),
        generation=generation,
        era=generation,
        grid=layout.grid,
        cut=layout.cut,
        shares=layout.shares,
        assignment=assignment,
        slow=(),
        retiring=None,
        relieved=(),
        phase=Phase.RESTORING if base.checkpoint else Phase.RECONFIGURING,
        reconfiguration=replace(
            reconfiguration,
            base=base.step,
            checkpoint=base.checkpoint,
            total_square=base.total_square,
        ),
    )
    newest = max((h.step for r in reconfiguration.reports for h in r.holdings), default=base.step)
    who = "1 node" if len(roles) == 1 else f"{len(roles)} nodes"
    words = f"{who} on {grid_words(after.grid)}, from step {base.step} on"
    if base.checkpoint:
        where = f"the checkpoint of step {base.step}" if base.step else "the beginning"
        words = f"restored from {where} on {grid_words(after.grid)}"
        if (lost := newest - base.step) > 0:
            words += f", {lost} {'step is' if lost == 1 else 'steps are'} done again"
    return after, words


def _begun_anew(state: State) -> State:
    """Note that no step was taken: the initial state need not be stored."""
    if is_kept(state.checkpoints, 0):
        return state
    return state.having(checkpoints=(Checkpoint(step=0, era=0), *state.checkpoints))


def _keep_words(keep: Keep) -> str:
    nodes = len(keep.parts)
    who = "1 node stores" if nodes == 1 else f"{nodes} nodes store"
    return f"{who} the state before step {keep.step}, and nobody goes on before that"


def _end_here(decided: Transition, state: State, outcome: Outcome, words: str) -> Transition:
    """End the run instead of going on in a new layout."""
    ended = end(replace(state, reconfiguration=None), outcome, f"{decided.reason}; {words}")
    orders = tuple(e for e in decided.effects if not isinstance(e, Quiesce | TerminateAll))
    assert ended.effects[-1] == TerminateAll(to=FLEET)
    return replace(ended, effects=(*orders, *ended.effects))


def _with(decided: Transition, state: State, words: str) -> Transition:
    return replace(decided, state=state, reason=f"{decided.reason}; {words}")


def _next(before: State) -> int:
    return before.generation + 1


# ---------------------------------------------------------------- all go on


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
    if (last := after.stop_at_step) is not None:
        effects += [StopAt(to=node.id, step=last) for node in live_members(after)]
    elif after.stop_reason is not None:
        effects += [HoldForStop(to=node.id) for node in live_members(after)]
    return after, tuple(effects)


def _ends_evaluated(state: State) -> bool:
    """Whether evaluations end the run, at a step that no new layout changes."""
    return state.stop_outcome is Outcome.DONE


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
