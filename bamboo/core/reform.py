"""A reconfiguration: all stop, say what they hold, get what they lack, and go on in a new layout.

    begun  ->  planned: a boundary is agreed, the step finished  ->  all have said what they hold
    ->  base step, layout and places are decided  ->  all have what they are to hold  ->  go on

It serves all that a shadow cannot: more or fewer pipelines, fewer stages, a stage whose owner and
shadow are both gone and which another pipeline still has, a restore from a checkpoint, waiting for
nodes. Rules. (1) The state before a step is the same bits wherever it lies, so the base is the
newest step for which every layer is found somewhere, alive or in a checkpoint. (2) A loss on the
way begins another round, in which everything that is still there counts. (3) Nothing waits for a
node that is gone.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import chain

from bamboo.core.ahead import fed_layers, whole_of
from bamboo.core.answers import answers
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
from bamboo.core.events import BoundaryReady, LayoutBuilt, Quiesced
from bamboo.core.keep import left_words, without
from bamboo.core.policy import Policy
from bamboo.core.state import (
    Node,
    NodeStatus,
    Phase,
    Preparing,
    Rebuilt,
    Reform,
    Report,
    State,
)
from bamboo.core.transition import (
    Transition,
    begun_words,
    boundary_words,
    changed,
    live_members,
    stale,
    with_status,
)
from bamboo.core.words import grid_words, sent_words, size, why_words
from bamboo.ids import NodeId


def begin_reform(
    state: State,
    *,
    why: str,
    planned: bool,
    forced: bool = False,
    intact: bool = False,
    ahead: Preparing | None = None,
    save: bool = False,
) -> tuple[State, tuple[Effect, ...]]:
    """`state` with a new round begun. `intact`: nothing is lost that any node held, as in every
    planned one. `ahead`: what was sent for it already. `save`: what nobody holds who stays is
    stored first, as in every later round of one that was begun so."""
    since = state.version + 1
    if planned and ahead is None and state.preparing is not None:
        ahead = whole_of(state.preparing)  # another reason came first; what was sent counts
    asked = tuple(node.id for node in state.live_nodes())
    draining = [n.id for n in state.roll.aside if n.status is NodeStatus.DRAINING]
    # After a loss nobody is given back: what they hold, and they, may be needed.
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
        reform=Reform(
            since=since,
            why=why,
            planned=planned,
            intact=planned or intact,
            asked=asked,
            owners=_owners(state),
            forced=forced,
            ahead=ahead,
            save=save or (state.reform is not None and state.reform.save),
        ),
    )
    kind = AgreeBoundary if planned else Quiesce
    return after, tuple(kind(to=node, since=since) for node in asked)


def _owners(state: State) -> tuple[NodeId, ...]:
    """Who trains; in a later round, who did before the first one."""
    if state.reform is not None:
        return state.reform.owners
    return () if state.assignment is None else tuple(sorted(set(state.assignment.owners)))


def can_recover(state: State, policy: Policy) -> bool:
    """Whether a slot without a live copy may be found elsewhere."""
    if not policy.elastic:
        return False
    peers = state.grid.pipelines > 1 and state.redundancy != "off"
    return peers or policy.checkpoint_every > 0 or bool(state.checkpoints)


def lose_while_reforming(
    state: State, node: NodeId, effects: tuple[Effect, ...], words: str, policy: Policy
) -> Transition:
    """`node` is gone (its status says so already) in the middle of a reconfiguration."""
    reform = _reform(state)
    needed = state.assignment is not None and state.assignment.roles.has(node)
    report = next((r for r in reform.reports if r.node == node), None)
    if reform.keep is not None:
        keep = without(state, node, policy)
        if keep is not None:
            held = report is not None and _held_alone(reform, report)
            reform = replace(reform, keep=keep, intact=reform.intact and not held)
            return changed(state.having(reform=reform), effects, f"{words}; {left_words(keep)}")
        reform = replace(reform, keep=None)
        state = state.having(reform=reform)
        words += "; nobody else has what it was to store"
    if reform.base is None:
        # Before a planned one who has no slot has only what was sent ahead, which others have too.
        held = needed if report is None or reform.planned else _held_alone(reform, report)
        if not reform.planned:
            after = state.having(reform=replace(reform, intact=reform.intact and not held))
            return changed(after, effects, words)  # `settle` goes on without it
        if not held:
            asked = tuple(other for other in reform.asked if other != node)
            after, orders, more = _fix_boundary(state, replace(reform, asked=asked))
            return changed(after, (*effects, *orders), f"{words}; it held nothing{more}")
    else:
        asked_of = report is not None and bool(report.holdings)  # else it came later, with nothing
        if not asked_of and not needed:
            return changed(state, effects, f"{words}; it held nothing and gets nothing")
        held = report is not None and _held_alone(reform, report, state.roll.live)
    after, orders = begin_reform(
        state,
        why=reform.why,
        planned=False,
        forced=reform.forced,
        intact=reform.intact and not held,
        ahead=reform.ahead,
    )
    return changed(after, (*effects, *orders), f"{words}; everybody stops where he is")


# ---------------------------------------------------------------- what the nodes say


def agree_boundary(state: State, event: BoundaryReady) -> Transition:
    """The last answer fixes the step that all finish before they stop."""
    if (why := _void(state, event.node, event.since)) is not None:
        return stale(state, why)
    reform = _reform(state)
    if answers(reform.ready).has(event.node):
        return stale(state, f"{event.node} has answered already")
    ready = answers(reform.ready).having((event.node, event.step))
    noted = replace(reform, ready=ready)
    after, orders, words = _fix_boundary(state, noted)
    reason = f"node {event.node} {begun_words(event.step, words)}"
    return changed(after, orders, reason)


def _fix_boundary(state: State, reform: Reform) -> tuple[State, tuple[Effect, ...], str]:
    """`state` with `reform`, whose boundary is fixed when all who are asked have answered."""
    after = state.having(reform=reform)
    if reform.boundary is not None:
        return after, (), ""
    waiting = answers(reform.ready).silent(reform.asked)
    if waiting or not reform.asked:
        return after, (), f"; waiting for {len(waiting)} more"
    step_of = dict(reform.ready)
    step = max(step_of[node] for node in reform.asked)
    orders = tuple(QuiesceAfter(to=to, since=reform.since, step=step) for to in reform.asked)
    after = state.having(reform=replace(reform, boundary=step))
    return after, orders, boundary_words(step)


def note_holdings(state: State, event: Quiesced) -> Transition:
    """A node has stopped and says what it holds; `settle` decides when all have."""
    if (why := _void(state, event.node, event.since)) is not None:
        return stale(state, why)
    reform = _reform(state)
    if answers(reform.reports).has(event.node):
        return stale(state, f"{event.node} has said what it holds already")
    reports = answers(reform.reports).having(report_of(event))
    after = state.having(reform=replace(reform, reports=reports))
    layers = sum(h.stop - h.first for h in event.holdings)
    return changed(after, (), f"node {event.node} has stopped and holds {layers} layers")


def report_of(event: Quiesced) -> Report:
    """What a node that has stopped said, as it is noted."""
    return Report(node=event.node, holdings=event.holdings, norms=event.norms)


def note_built(state: State, event: LayoutBuilt) -> Transition:
    """A node has all that it is to hold; the last one sets everybody going."""
    reform, assignment = state.reform, state.assignment
    if reform is None or reform.since != event.since or reform.base is None:
        return stale(state, f"{event.node} speaks of a reconfiguration that is over")
    if assignment is None or not _is_live(state, event.node):
        return stale(state, f"{event.node} is away: its report does not count")
    if answers(reform.rebuilt).has(event.node):
        return stale(state, f"{event.node} has said so already")
    rebuilt = answers(reform.rebuilt).having(Rebuilt(node=event.node, bytes=event.bytes))
    noted = state.having(reform=replace(reform, rebuilt=rebuilt))
    missing = rebuilt.silent(assignment.members())
    reason = f"node {event.node} has what it is to hold, {sent_words(event.bytes)} to it"
    if missing:
        return changed(noted, (), f"{reason}; waiting for {len(missing)} more")
    after, effects = _go_on(noted, reform.base)
    moved = sum(one.bytes for one in rebuilt)
    reason = (
        f"all go on from step {reform.base} on {grid_words(after.grid)}: "
        f"{why_words(reform.why, after.grid)}; {sent_words(moved)}"
    )
    if before := reform.ahead.prepared_bytes if reform.ahead is not None else 0:
        reason += f", {size(before)} before"
    return changed(after, effects, reason)


# ---------------------------------------------------------------- all go on


def _go_on(state: State, base: int) -> tuple[State, tuple[Effect, ...]]:
    """Everybody has what he is to hold: the run is what it was before, in another layout."""
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
    after = state.having(reform=None, generation=state.generation + 1)
    if after.stop_reason is not None:
        effects += [HoldForStop(to=node.id) for node in live_members(after)]
    return after, tuple(effects)


def give_back(node: Node) -> TerminateInstance:
    """The instance of a node that was released."""
    return TerminateInstance(to=FLEET, instance=node.instance, reason="its node was released")


def at_rest(state: State) -> bool:
    """Whether the run trains, and nothing else is under way."""
    busy = (state.reform, state.failovers, state.transfers, state.moves, state.finished)
    training = state.phase in (Phase.RUNNING, Phase.DEGRADED)
    return training and not any(busy) and state.stop_reason is None


def _held_alone(reform: Reform, report: Report, live: Collection[NodeId] = ()) -> bool:
    """Whether a node held anything that was not sent to it ahead; once a base is decided, as it is
    there, and nobody of `live` has it too."""
    held = set(chain.from_iterable(range(h.first, h.stop) for h in report.holdings))
    if reform.base is not None:
        held &= held_at(report, reform.base, reform.total_square)
        held -= {layer for layer, nodes in holders(reform).items() if set(nodes) & set(live)}
    return not fed_layers(reform.ahead, report.node).issuperset(held)


def _is_live(state: State, node: NodeId) -> bool:
    found = state.node(node)
    return found is not None and found.status.live


def _void(state: State, node: NodeId, since: int) -> str | None:
    """Why a report about a reconfiguration does not count, or None."""
    if state.reform is None or state.reform.since != since:
        return f"{node} speaks of a reconfiguration that is over"
    return void_member(state, node)


def void_member(state: State, node: NodeId) -> str | None:
    """Why a node's word does not count, or None."""
    return None if _is_live(state, node) else f"{node} is away: its report does not count"


def _reform(state: State) -> Reform:
    assert state.reform is not None, "asked only while a reconfiguration is under way"
    return state.reform
