"""Decides the target assignment, the owners and shadows that a running grid should have given the
nodes that are there, and leads to it by transfers of replicas and moves of slots.

Rules of the target. (1) It is a function of the state alone, so every member computes the same one.
(2) A node that owns a slot keeps one. Only slots of a node that owns several are given away, first
to standbys, then to members that own at least two fewer. Where neighbours should lie in different
zones, a standby in another zone than its neighbours is preferred. (3) Shadows are those of
`layout.shadow_of`. (4) It is computed at every event, so it looks only at what may differ from the
present: nodes that own several slots or none, nodes that should own none, and slots whose shadow is
in doubt.

Rules of the way there. (1) There is no stored plan. After every decision the core finds again what
is missing, and whatever was begun goes on while both its ends are there. (2) A slot moves only to a
node that has its replica already, at a step boundary, so a move sends nothing. (3) While a run
ends, nothing is begun.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter, is_

from bamboo.core.effects import (
    FLEET,
    OTHERS,
    Drain,
    Effect,
    End,
    Promote,
    Resend,
    TerminateInstance,
)
from bamboo.core.events import ReplicaJoined, Yielded
from bamboo.core.failover import assigned, settled_phase
from bamboo.core.layout import new_shadows
from bamboo.core.state import Failover, Move, Node, NodeStatus, Phase, State, Transfer
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
from bamboo.topology.assignment import Assignment
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import BARE_MODES


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacks:
    """How the present assignment differs from the target: slots that should have another owner, and
    slots that should have another shadow, or none."""

    owners: Mapping[Slot, NodeId]
    shadows: Mapping[Slot, NodeId | None]


_NOTHING = Lacks(owners={}, shadows={})


def aim(state: State, *, apart: bool = False) -> Assignment | None:
    """The target assignment; the present one if there is no better. None before the first
    assignment.

    The slots of nodes with a notice are given away here, before they are handed over. `apart`:
    neighbours should lie in different zones.
    """
    if state.assignment is None:
        return None
    lacks = lacking(state, state.assignment, apart=apart)
    return state.assignment.replace(owners=lacks.owners, shadows=lacks.shadows)


def lacking(state: State, assignment: Assignment, *, apart: bool) -> Lacks:
    """Where the assignment of a state differs from the target assignment (`aim`)."""
    roll, roles = state.roll, assignment.roles
    if not (roles.several or roles.astray or roll.leaving or apart or state.retiring):
        return _NOTHING  # the usual case: one slot each, shadowed by the neighbour
    idle = _idle(state, assignment)
    going = _going(state, assignment, idle)
    usable = roll.usable - going if going else roll.usable
    barred = going | roll.leaving
    owners = _owners(state, assignment, usable, idle - going, sorted(barred), apart=apart)
    if state.redundancy in BARE_MODES:
        return Lacks(owners=owners, shadows={})
    aimed = assignment.replace(owners=owners, shadows={})
    several_zones = apart and len(set(map(roll.zones.get, aimed.owners))) > 1
    zones = roll.zones if several_zones else None
    return Lacks(owners=owners, shadows=new_shadows(aimed, usable, zones, barred=barred))


def soon_taken(state: State, giver: NodeId) -> frozenset[Slot]:
    """The slots of a node with several that a node without any will take, which has the replica or
    is being sent it. Empty while the run ends, since nothing moves then."""
    assignment = state.assignment
    if assignment is None or giver not in assignment.roles.several:
        return frozenset()
    if state.stop_reason is not None or state.finished:
        return frozenset()
    coming = {t.slot: t.receiver for t in state.transfers if t.source == giver}
    # Which slots are given away does not depend on the zones of the nodes that take them.
    given = lacking(state, assignment, apart=False).owners
    takers = {
        slot: coming.get(slot, assignment.shadow(slot))
        for slot in assignment.owned_by(giver)
        if slot in given
    }
    owned = assignment.roles.owned
    return frozenset(slot for slot, to in takers.items() if to is not None and to not in owned)


def _idle(state: State, assignment: Assignment) -> frozenset[NodeId]:
    """The usable nodes that own nothing: standbys, and members with replicas only."""
    roles = assignment.roles
    waiting = (n.id for n in state.roll.aside if n.usable and n.id not in roles.owned)
    return (roles.landless & state.roll.usable).union(waiting)


def _going(state: State, assignment: Assignment, idle: Collection[NodeId]) -> frozenset[NodeId]:
    """The slow node that should own nothing any more, once there is another node for its place."""
    node = state.retiring
    if node is None:
        return frozenset()
    spare = any(other != node for other in idle)
    return frozenset({node}) if spare or not assignment.owned_by(node) else frozenset()


class _Hands:
    """The slots of each node while slots are given away. Only the nodes that matter are looked
    up."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._slots: dict[NodeId, list[Slot]] = {}
        for node in assignment.roles.several:
            self.of(node)

    def of(self, node: NodeId) -> list[Slot]:
        if node not in self._slots:
            self._slots[node] = list(self._assignment.owned_by(node))
        return self._slots[node]

    def give(self, slot: Slot, giver: NodeId, taker: NodeId) -> None:
        self.of(giver).remove(slot)
        self.of(taker).append(slot)

    def fullest(self) -> NodeId | None:
        """The node with the most slots, if it has more than one; of equals the first."""
        rich = (node for node, slots in self._slots.items() if len(slots) > 1)
        return min(rich, key=lambda node: (-len(self._slots[node]), node), default=None)


def _owners(
    state: State,
    assignment: Assignment,
    usable: Collection[NodeId],
    idle: Collection[NodeId],
    leavers: Collection[NodeId],
    *,
    apart: bool,
) -> Mapping[Slot, NodeId]:
    """The slots that should change their owner, each with its new owner."""
    hands = _Hands(assignment)
    zones = state.roll.zones
    standbys = set(idle)
    out: dict[Slot, NodeId] = {}

    def nearest(slot: Slot) -> NodeId:
        near = _zones_beside(assignment, slot, zones)

        def fit(node: NodeId) -> tuple[bool, bool, NodeId]:
            known = state.node(node)
            return known is not None and known.advised, (zones[node] in near) is apart, node

        taker = min(standbys, key=fit)
        standbys.remove(taker)
        return taker

    for leaver in leavers:
        for slot in assignment.owned_by(leaver):
            shadow = None if leaver == state.retiring else assignment.shadow(slot)
            to = nearest(slot) if standbys else shadow
            if to is not None and to in usable:
                hands.give(slot, leaver, to)
                out[slot] = to
    while (giver := hands.fullest()) is not None:
        slot = _spare(assignment, hands.of(giver))
        if standbys:
            taker = nearest(slot)
        elif len(hands.of(giver)) == 2:
            return out  # all others own at least one
        else:
            taker = min(usable, key=lambda node: (len(hands.of(node)), node), default=giver)
            if len(hands.of(giver)) - len(hands.of(taker)) < 2:
                return out
        hands.give(slot, giver, taker)
        out[slot] = taker
    return out


def _spare(assignment: Assignment, slots: list[Slot]) -> Slot:
    """Which of several slots of one node to give away: the last one whose protector the node keeps.
    It then stays that slot's shadow, and only the roles change."""
    beside = [slot for slot in slots if assignment.grid.protector(slot) in slots]
    return (beside or slots)[-1]


def _zones_beside(
    assignment: Assignment, slot: Slot, zones: Mapping[NodeId, str]
) -> frozenset[str]:
    grid = assignment.grid
    return frozenset(
        zones[assignment.owner(near)] for near in (grid.protector(slot), grid.protected(slot))
    )


# --------------------------------------------------- from the present assignment to the target


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
    state, effects, words = _dismiss(state)
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


def _dismiss(state: State) -> tuple[State, tuple[Effect, ...], list[str]]:
    """Let a retiring node leave that has given everything away; forget one that is lost."""
    if state.retiring is None:
        return state, (), []
    node = state.node(state.retiring)
    if node is None or not node.status.live:
        return replace(state, retiring=None), (), []
    if node.status is not NodeStatus.READY or _is_needed(state, node):
        return state, (), []
    reason = f"{node.id} was slow and has given everything away: it leaves"
    effects = (
        End(to=node.id),
        TerminateInstance(to=FLEET, instance=node.instance, reason=reason),
    )
    after = with_status(replace(state, retiring=None), NodeStatus.LEFT, node.id)
    return after, effects, [reason]


def _is_needed(state: State, node: Node) -> bool:
    ends = {t.source for t in state.transfers} | {m.source for m in state.moves}
    return node.id in ends | {f.victim for f in state.failovers}
