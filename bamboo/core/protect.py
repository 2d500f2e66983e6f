"""Leads from the present assignment to the target assignment, by transfers of replicas and moves of
slots.

Rules. (1) There is no stored plan. After every decision the core finds again what is missing, and
whatever was begun goes on while both its ends are there. (2) A slot moves only to a node that has
its replica already, at a step boundary, so a move sends nothing. (3) While a run ends, nothing is
begun.
"""

from dataclasses import replace
from operator import attrgetter, is_

from bamboo.core.effects import OTHERS, Drain, Effect, Promote, Resend
from bamboo.core.events import ReplicaJoined, Yielded
from bamboo.core.failover import assigned, settled_phase
from bamboo.core.layout.target_assignment import Lacks, lacking
from bamboo.core.state import Failover, Move, NodeStatus, Phase, State, Transfer
from bamboo.core.straggler import dismiss
from bamboo.core.transition import (
    Transition,
    acting_member,
    acts,
    away,
    changed,
    listed,
    name_slots,
    sent_words,
    stale,
    with_status,
)
from bamboo.ids import NodeId
from bamboo.topology.strategy import BARE_MODES

_LOOKED_AT = attrgetter(
    *("nodes", "assignment", "transfers", "moves", "failovers", "retiring", "relieved"),
    *("reconfiguration", "phase", "stop_reason", "finished", "redundancy"),
)


def protect(before: State, decided: Transition, *, apart: bool = False) -> Transition:
    """Begin what `decided` leaves to be protected or moved, and add it to the reason.

    `before` is the state before the decision. `apart`: neighbours should lie in different zones.
    """
    state = decided.state
    if state is before or state.assignment is None or state.reconfiguration is not None:
        return decided
    if state.phase is Phase.FINISHED or (state.retiring is None and _is_settled(before, state)):
        return decided
    state = _with_roles(before, _without_void(state))
    state, effects, words = dismiss(state)
    if state.stop_reason is None and not state.finished and state.redundancy not in BARE_MODES:
        state, begun = _begin(state, lacking(state, assigned(state), apart=apart))
        state, drains, drained = _drain_protected(state)
        effects = (*effects, *drains)
        words += [*begun, *drained]
    phase = settled_phase(state)
    if phase is not state.phase:
        state = state.having(phase=phase)
    if state is decided.state:
        return decided
    reason = "; ".join([decided.reason, *words])
    return Transition(state=state, effects=(*decided.effects, *effects), reason=reason)


def _is_settled(before: State, state: State) -> bool:
    """Whether nothing that matters here has changed since `before`."""
    return all(map(is_, _LOOKED_AT(before), _LOOKED_AT(state)))


def join_replica(state: State, event: ReplicaJoined) -> Transition:
    """The receiver of a transfer becomes the shadow, in place of the former one."""
    node = acting_member(state, event.node, "ReplicaJoined")
    if not acts(node):
        return stale(state, f"{event.node} {away(node)}: its report does not count")
    mine = (event.slot, event.node, event.receiver, event.since)
    done = next(
        (t for t in state.transfers if (t.slot, t.source, t.receiver, t.since) == mine), None
    )
    if done is None:
        return stale(state, f"no such transfer to {event.receiver} is under way any more")
    if state.stop_reason is not None or state.finished:
        return stale(state, f"the run is ending; {event.receiver} is needed no more")
    assignment = assigned(state).replace(owners={}, shadows={event.slot: event.receiver})
    after = state.having(
        generation=state.generation + 1,
        assignment=assignment,
        transfers=tuple(t for t in state.transfers if t is not done),
    )
    reason = (
        f"node {event.receiver} shadows {name_slots(state, (event.slot,))} from step {event.step} "
        f"on: {sent_words(event.bytes)}"
    )
    return changed(after, (), reason)


def yield_slot(state: State, event: Yielded, *, now_s: float) -> Transition:
    """Owner and shadow of a slot change roles at a step boundary."""
    node = acting_member(state, event.node, "Yielded")
    if not acts(node):
        return stale(state, f"{event.node} {away(node)}: its report does not count")
    mine = (event.slot, event.node, event.since)
    move = next((m for m in state.moves if (m.slot, m.source, m.since) == mine), None)
    if move is None:
        return stale(state, f"{name_slots(state, (event.slot,))} is not to move any more")
    slot, to = event.slot, move.receiver
    started = Failover(slot=slot, victim=event.node, successor=to, decided_at_s=now_s, planned=True)
    owing = {event.node, to}
    after = state.having(
        generation=state.generation + 1,
        assignment=assigned(state).replace(owners={slot: to}, shadows={slot: event.node}),
        failovers=(*state.failovers, started),
        moves=tuple(m for m in state.moves if m is not move),
        finished=tuple(n for n in state.finished if n not in owing),
    )
    effects = (
        Promote(to=to, slot=slot, victim=event.node),
        Resend(to=OTHERS, slot=slot, owner=to),
    )
    reason = (
        f"node {to} takes {name_slots(state, (slot,))} over from {event.node}, which shadows it "
        f"from now on, before step {event.step}"
    )
    return changed(after, effects, reason)


def _without_void(state: State) -> State:
    """Drop the transfers and moves whose ends have changed their roles."""
    if not state.transfers and not state.moves:
        return state
    transfers = tuple(t for t in state.transfers if _goes_on(state, t))
    moves = tuple(m for m in state.moves if _stands(state, m))
    if (transfers, moves) == (state.transfers, state.moves):
        return state
    return state.having(transfers=transfers, moves=moves)


def _goes_on(state: State, transfer: Transfer) -> bool:
    """Whether both ends of a transfer still have their roles."""
    assignment = assigned(state)
    return (
        assignment.owner(transfer.slot) == transfer.source
        and assignment.shadow(transfer.slot) != transfer.receiver
        and _stays(state, transfer.receiver)
    )


def _stands(state: State, move: Move) -> bool:
    assignment = assigned(state)
    receiver = state.node(move.receiver)
    return (
        assignment.owner(move.slot) == move.source
        and assignment.shadow(move.slot) == move.receiver
        and receiver is not None
        and receiver.notice_deadline_s is None
    )


def _with_roles(before: State, state: State) -> State:
    """Make standbys with a replica members, and members without any slot standbys."""
    if state.assignment is before.assignment:
        return state
    roles, aside = assigned(state).roles, state.roll.aside
    called = [n for n in aside if n.status is NodeStatus.READY and roles.has(n.id)]
    # A node with a role is live. If as many have a role as could have one, none must be freed.
    plain = len(state.roll.live) - len(aside)
    busy = len(roles) - sum(roles.has(n.id) for n in aside)
    among = state.nodes if busy < plain else aside
    freed = [n for n in among if n.status is NodeStatus.MEMBER and not roles.has(n.id)]
    return state.with_nodes(
        *(replace(n, status=NodeStatus.MEMBER) for n in called),
        *(replace(n, status=NodeStatus.READY) for n in freed),
    )


def _begin(state: State, lacks: Lacks) -> tuple[State, list[str]]:
    """Begin a transfer or a move for every slot that differs from the target assignment."""
    if not (lacks.owners or lacks.shadows):
        return state, []
    assignment = assigned(state)
    since = state.version + 1
    busy = {t.slot for t in state.transfers} | {m.slot for m in state.moves}
    hit = {f.slot for f in state.failovers}
    transfers, moves = list(state.transfers), list(state.moves)
    words: list[str] = []
    replicas: list[str] = []
    for slot in sorted({*lacks.owners, *lacks.shadows} - busy):
        owner, shadow = assignment.owner(slot), assignment.shadow(slot)
        to = lacks.owners.get(slot, lacks.shadows.get(slot))
        leaves = not _stays(state, owner) and _stays(state, shadow)
        if to is None or leaves:  # an owner that leaves hands over to its shadow instead
            continue
        if slot in lacks.owners and shadow == to:
            if slot not in hit:
                moves.append(Move(slot=slot, source=owner, receiver=to, since=since))
                words.append(f"{name_slots(state, (slot,))} moves to {to} at a step boundary")
        else:
            transfers.append(Transfer(slot=slot, source=owner, receiver=to, since=since))
            replicas.append(f"{name_slots(state, (slot,))} on {to}")
    if replicas:
        words.append(f"new replicas: {listed(replicas)}")
    if not words:
        return state, words
    return state.having(transfers=tuple(transfers), moves=tuple(moves)), words


def _drain_protected(state: State) -> tuple[State, tuple[Effect, ...], list[str]]:
    """Let members with a notice drain once each of their slots has a shadow that stays."""
    assignment = assigned(state)
    effects: list[Effect] = []
    words: list[str] = []
    for node in state.roll.aside:
        if node.status is not NodeStatus.MEMBER:
            continue
        slots = assignment.owned_by(node.id)
        if all(_stays(state, assignment.shadow(slot)) for slot in slots):
            state = with_status(state, NodeStatus.DRAINING, node.id)
            effects.append(Drain(to=node.id))
            what = name_slots(state, slots) if slots else "its replicas"
            words.append(f"{node.id} hands {what} over at the next step boundary")
    return state, tuple(effects), words


def _stays(state: State, node: NodeId | None) -> bool:
    found = None if node is None else state.node(node)
    return found is not None and found.usable
