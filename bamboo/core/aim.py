"""Which assignment a running grid should come to, given who is there.

Rules. (1) A function of the state alone, so every member aims at the same. (2) Whoever owns a slot
keeps one; only what one node must do for several is given away, first to standbys, then to members
that own at least two less. (3) A slot's replica lies with the owner that comes before it in the
ring and is another node: with a slot for each node that is the neighbour (Thorpe et al., Bamboo,
NSDI 2023), and the loss of any single node leaves a copy of everything. (4) Where neighbours are to
lie in different zones, an owner in another zone shadows before a nearer one in the same, and a
standby from another zone than its neighbours takes over before others: a loss within one zone then
leaves a copy of everything too.
"""

from collections.abc import Collection, Mapping

from bamboo.core.state import State
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import BARE_MODES


def aim(state: State, *, apart: bool = False) -> Assignment | None:
    """The assignment to come to; the present one where nothing better can be had. None before the
    first. What nodes under notice own is given away here, before they have handed it over.
    `apart`: neighbours are to lie in different zones."""
    assignment = state.assignment
    if assignment is None:
        return None
    usable = frozenset(n.id for n in state.live_nodes() if n.notice_deadline_s is None)
    usable -= _going(state, assignment, usable)
    owners = _owners(state, assignment, usable, apart=apart)
    if state.redundancy in BARE_MODES:
        return assignment.replace(owners=owners, shadows={})
    aimed = assignment.replace(owners=owners, shadows={})
    zones = {n.id: n.zone for n in state.nodes} if apart else None
    shadows = {slot: shadow_of(aimed, slot, usable, zones) for slot in aimed.grid.slots()}
    return aimed.replace(owners={}, shadows=shadows)


def _going(state: State, assignment: Assignment, usable: Collection[NodeId]) -> frozenset[NodeId]:
    """The slow node that is given nothing any more: from when there is another for its place."""
    node = state.retiring
    if node is None:
        return frozenset()
    spare = any(n != node and not assignment.owned_by(n) for n in usable)
    return frozenset({node}) if spare or not assignment.owned_by(node) else frozenset()


def _owners(
    state: State, assignment: Assignment, usable: Collection[NodeId], *, apart: bool
) -> Mapping[Slot, NodeId]:
    """Slots that should change hands, each with its new owner."""
    holding = {n.id: list(assignment.owned_by(n.id)) for n in state.live_nodes()}
    out: dict[Slot, NodeId] = {}
    standbys = {n.id: n.zone for n in state.live_nodes() if n.id in usable and not holding[n.id]}
    zones = {n.id: n.zone for n in state.nodes}
    advised = {n.id for n in state.nodes if n.advised}

    def nearest(slot: Slot) -> NodeId:
        near = _zones_beside(assignment, slot, zones)

        def fit(node: NodeId) -> tuple[bool, bool, NodeId]:
            return node in advised, (standbys[node] in near) is apart, node

        taker = min(standbys, key=fit)
        del standbys[taker]
        return taker

    for leaver in sorted(n for n in holding if n not in usable):
        for slot in list(holding[leaver]):
            shadow = assignment.shadow(slot)
            to = nearest(slot) if standbys else (None if leaver == state.retiring else shadow)
            if to is not None and to in usable:
                holding[leaver].remove(slot)
                holding[to].append(slot)
                out[slot] = to
    while True:
        giver = max(sorted(holding), key=lambda node: len(holding[node]))
        if len(holding[giver]) < 2:
            return out
        slot = _spare(assignment, holding[giver])
        if standbys:
            taker = nearest(slot)
        else:
            able = [n for n in sorted(holding) if n in usable]
            taker = min(able, key=lambda node: len(holding[node]), default=giver)
            if len(holding[giver]) - len(holding[taker]) < 2:
                return out
        holding[giver].remove(slot)
        holding[taker].append(slot)
        out[slot] = taker


def _spare(assignment: Assignment, slots: list[Slot]) -> Slot:
    """Which of several slots of one node to give away: the last whose protector it keeps, so that
    it stays that slot's shadow and nothing but the roles changes."""
    beside = [slot for slot in slots if assignment.grid.protector(slot) in slots]
    return (beside or slots)[-1]


def _zones_beside(
    assignment: Assignment, slot: Slot, zones: Mapping[NodeId, str]
) -> frozenset[str]:
    grid = assignment.grid
    return frozenset(
        zones[assignment.owner(near)] for near in (grid.protector(slot), grid.protected(slot))
    )


def shadow_of(
    aimed: Assignment,
    slot: Slot,
    usable: Collection[NodeId],
    zones: Mapping[NodeId, str] | None = None,
) -> NodeId | None:
    """The first usable owner before `slot` in its ring, else of another pipeline, else whoever
    else is usable, else the shadow of now. With `zones`, before all of these the usable owners in
    another zone, in the same order: one of them may get several replicas."""
    owner = aimed.owner(slot)
    if zones is not None:
        able = {n for n in aimed.owners if n in usable and zones.get(n) != zones.get(owner)}
        if able:
            return shadow_of(aimed, slot, able)
    grid, before = aimed.grid, slot
    for _ in range(grid.stages - 1):
        before = grid.protector(before)
        ahead = aimed.owner(before)
        if ahead != owner and ahead in usable:
            return ahead
    # One node for all slots of one owner, so that a loss finds their replicas at one step.
    anchor = min(aimed.owned_by(owner), key=lambda held: (held.pipeline, held.stage))
    others = [aimed.owner(other) for other in grid.column(anchor.stage)]
    others += [aimed.owner(other) for other in grid.slots()]
    found_elsewhere = [n for n in (*others, *sorted(usable)) if n != owner and n in usable]
    now = aimed.shadow(slot)
    return found_elsewhere[0] if found_elsewhere else (now if now != owner else None)
