"""Decides how a reconfiguration goes on once all nodes have stopped and reported what they hold.

It decides base, layout and assignment. Before that, state without a home may have to be stored; or
the run waits for nodes, or ends.

Rule: nodes whose state has a home go on at once. Nodes that wait for others, or that will be taken,
take no step beyond what is stored. When no step is left to train, all write the final state while
they are there.
"""

from dataclasses import replace

from bamboo.core.base import Base, find_base, held_at
from bamboo.core.effects import FLEET, Quiesce, TerminateAll
from bamboo.core.layout.layout_choice import layout_for, place
from bamboo.core.rounds import answers
from bamboo.core.saving.keep import begin_keep, is_kept
from bamboo.core.state import (
    Checkpoint,
    Keep,
    Node,
    NodeStatus,
    Outcome,
    Phase,
    Policy,
    Reconfiguration,
    State,
)
from bamboo.core.transition import Transition, end, grid_words, with_status


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
        keep = begin_keep(state, _under_way(state), base, policy, era=era)
        if keep is not None:
            state = state.having(
                generation=era, reconfiguration=replace(_under_way(state), keep=keep)
            )
            return _with(decided, state, _keep_words(keep))
    nodes = usable_nodes(state)
    over = 0 < policy.steps <= base.step
    if kept and not state.roll.usable and not over:
        nodes = ()  # nodes that will be taken train no more: their steps would not be stored
    stored = base.checkpoint or kept
    short = stored and len(nodes) < policy.stages and not (reconfiguration.forced or over)
    if not nodes or short:
        if state.stop_reason is not None and state.stop_outcome is not None:
            words = f"stopped while it waits for nodes: {state.stop_reason}"
            return _end_here(decided, state, state.stop_outcome, words)
        # `forced` was meant for the nodes that were there then; now there are none.
        forced = reconfiguration.forced and bool(nodes)
        held = replace(_under_way(state), checkpoint=base.checkpoint, forced=forced)
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
    reconfiguration, nodes = _under_way(state), usable_nodes(state)
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


def _under_way(state: State) -> Reconfiguration:
    assert state.reconfiguration is not None, "asked only while a reconfiguration is under way"
    return state.reconfiguration
