"""Decides the target assignment: the owners and shadows that a running grid should have, given the
nodes that are there.

Rules. (1) It is a function of the state alone, so every member computes the same target. (2) A node
that owns a slot keeps one. Only slots of a node that owns several are given away, first to
standbys, then to members that own at least two fewer. (3) The replica of a slot lies with the
nearest owner before it in the ring that is another node. With one slot for each node that is the
neighbour (Thorpe et al., Bamboo, NSDI 2023), and the loss of any single node leaves a copy of
everything. (4) Where neighbours should lie in different zones, an owner in another zone is
preferred as shadow over a nearer one in the same zone, and a standby in another zone than its
neighbours over other standbys. A loss within one zone then leaves a copy of everything too. (5) It
is computed at every event, so it looks only at what may differ from the present: nodes that own
several slots or none, nodes that should own none, and slots for which rule 3 or 4 does not hold.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from bamboo.core.state import State
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
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


def shadowed(
    grid: Grid,
    owners: tuple[NodeId, ...],
    usable: Collection[NodeId],
    zones: Mapping[NodeId, str] | None = None,
) -> Assignment:
    """Make an assignment with these owners, all usable, and with shadows by rules 3 and 4."""
    ahead = tuple(owners[grid.before(number)] for number in range(grid.size))
    aimed = Assignment(grid=grid, owners=owners, shadows=ahead)
    return aimed.replace(owners={}, shadows=new_shadows(aimed, usable, zones))


def new_shadows(
    aimed: Assignment,
    usable: Collection[NodeId],
    zones: Mapping[NodeId, str] | None,
    *,
    barred: Collection[NodeId] = (),
) -> Mapping[Slot, NodeId | None]:
    """The slots that should have another shadow, with that shadow. `barred`: owners that are not
    usable; `zones`: as in `shadow_of`."""
    found = {
        slot: shadow_of(aimed, slot, usable, zones) for slot in _in_doubt(aimed, barred, zones)
    }
    return {slot: node for slot, node in found.items() if node != aimed.shadow(slot)}


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


def _in_doubt(
    aimed: Assignment, barred: Collection[NodeId], zones: Mapping[NodeId, str] | None
) -> list[Slot]:
    """The slots that may need another shadow. All others are shadowed by their neighbour in the
    ring, which can go on with that, and which lies in another zone if `zones` matter."""
    roles, grid = aimed.roles, aimed.grid
    numbers = set(roles.astray)
    for node in barred:
        numbers.update(grid.after(number) for number in roles.owned.get(node, ()))
    if zones is not None:
        pairs = enumerate(zip(aimed.owners, aimed.shadows, strict=True))
        numbers.update(
            number
            for number, (owner, shadow) in pairs
            if shadow is not None and zones[owner] == zones[shadow]
        )
    slots = grid.slots()
    return [slots[number] for number in sorted(numbers)]


def shadow_of(
    aimed: Assignment,
    slot: Slot,
    usable: Collection[NodeId],
    zones: Mapping[NodeId, str] | None = None,
) -> NodeId | None:
    """Choose the shadow of a slot: the first usable owner before it in its ring, else one of
    another pipeline, else any other usable node, else the present shadow. With `zones`, usable
    owners in another zone come before all of these, in the same order; one of them may get several
    replicas."""
    owner, now = aimed.owner(slot), aimed.shadow(slot)
    if zones is not None:
        home = zones.get(owner)
        for node in _owners_before(aimed, slot):
            if zones.get(node) != home and node in usable:
                return node
    for node in _owners_before(aimed, slot):
        if node != owner and node in usable:
            return node
    idle = min((node for node in usable if node != owner), default=None)
    return idle or (now if now != owner else None)


def _owners_before(aimed: Assignment, slot: Slot) -> Iterator[NodeId]:
    """All owners, in the order in which they are considered for the replica of `slot`."""
    grid = aimed.grid
    number = grid.number(slot)
    for _ in range(grid.stages - 1):
        number = grid.before(number)
        yield aimed.owners[number]
    # One node for all slots of one owner, so that a loss finds their replicas at one step.
    anchor = aimed.owned_by(aimed.owner(slot))[0]
    yield from aimed.owners[anchor.stage :: grid.stages]
    yield from aimed.owners
