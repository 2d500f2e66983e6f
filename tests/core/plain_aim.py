"""The assignment to come to, found the plain way: every node and every slot is looked at.

It is what `bamboo.core.protect` must find by looking only at what may differ, and
`place` without comparing each node with each slot.
"""

from collections.abc import Collection, Mapping, Sequence

from bamboo.core.protect import aim
from bamboo.core.state import Node, State
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.model_layout import ModelLayout
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import BARE_MODES


def aims_plainly(state: State, *, apart: bool = False) -> bool:
    """Whether the core aims at what is found here."""
    return aim(state, apart=apart) == plain_aim(state, apart=apart)


def plain_aim(state: State, *, apart: bool = False) -> Assignment:
    assignment = state.assignment
    assert assignment is not None
    usable = {n.id for n in state.live_nodes() if n.notice_deadline_s is None}
    if state.retiring is not None:
        spare = any(n != state.retiring and not assignment.owned_by(n) for n in usable)
        if spare or not assignment.owned_by(state.retiring):
            usable -= {state.retiring}
    aimed = assignment.replace(owners=_owners(state, assignment, usable, apart=apart), shadows={})
    if state.redundancy in BARE_MODES:
        return aimed
    zones = {n.id: n.zone for n in state.nodes} if apart else None
    shadows = {slot: plain_shadow(aimed, slot, usable, zones) for slot in aimed.grid.slots()}
    return aimed.replace(owners={}, shadows=shadows)


def _owners(
    state: State, assignment: Assignment, usable: Collection[NodeId], *, apart: bool
) -> Mapping[Slot, NodeId]:
    grid = assignment.grid
    holding = {n.id: list(assignment.owned_by(n.id)) for n in state.live_nodes()}
    zones = {n.id: n.zone for n in state.nodes}
    advised = {n.id for n in state.nodes if n.advised}
    standbys = {n for n in usable if not holding[n]}
    out: dict[Slot, NodeId] = {}

    def nearest(slot: Slot) -> NodeId:
        near = {zones[assignment.owner(s)] for s in (grid.protector(slot), grid.protected(slot))}
        taker = min(standbys, key=lambda n: (n in advised, (zones[n] in near) is apart, n))
        standbys.remove(taker)
        return taker

    def give(slot: Slot, giver: NodeId, taker: NodeId) -> None:
        holding[giver].remove(slot)
        holding[taker].append(slot)
        out[slot] = taker

    for leaver in sorted(n for n in holding if n not in usable):
        for slot in list(holding[leaver]):
            shadow = None if leaver == state.retiring else assignment.shadow(slot)
            to = nearest(slot) if standbys else shadow
            if to is not None and to in usable:
                give(slot, leaver, to)
    while True:
        giver = max(sorted(holding), key=lambda node: len(holding[node]))
        slots = holding[giver]
        if len(slots) < 2:
            return out
        beside = [slot for slot in slots if grid.protector(slot) in slots]
        slot = (beside or slots)[-1]
        if standbys:
            taker = nearest(slot)
        else:
            taker = min(sorted(usable), key=lambda node: len(holding[node]), default=giver)
            if len(slots) - len(holding[taker]) < 2:
                return out
        give(slot, giver, taker)


def plain_shadow(
    aimed: Assignment,
    slot: Slot,
    usable: Collection[NodeId],
    zones: Mapping[NodeId, str] | None = None,
) -> NodeId | None:
    owner = aimed.owner(slot)
    if zones is not None:
        able = {n for n in aimed.owners if n in usable and zones[n] != zones[owner]}
        if able:
            return plain_shadow(aimed, slot, able)
    grid, before = aimed.grid, slot
    ring = []
    for _ in range(grid.stages - 1):
        before = grid.protector(before)
        ring.append(aimed.owner(before))
    column = [aimed.owner(other) for other in grid.column(aimed.owned_by(owner)[0].stage)]
    order = (*ring, *column, *aimed.owners, *sorted(usable))
    now = aimed.shadow(slot)
    others = (n for n in order if n != owner and n in usable)
    return next(others, now if now != owner else None)


def plain_places(
    nodes: Sequence[Node],
    layout: ModelLayout,
    held: Mapping[NodeId, frozenset[int]],
    *,
    apart: bool,
) -> tuple[NodeId, ...]:
    """The owners of a new layout, for which there are nodes enough."""
    grid, zones = layout.grid, {node.id: node.zone for node in nodes}
    fits = []
    for node in nodes:
        for slot in grid.slots():
            have = held.get(node.id, frozenset())
            own = have.intersection(layout.layers_of(slot))
            beside = have.intersection(layout.layers_of(grid.protected(slot)))
            if own or beside:
                fits.append((-2 * len(own) - len(beside), node.id, slot))
    chosen: dict[Slot, NodeId] = {}
    for _, node_id, slot in sorted(fits):
        if slot not in chosen and node_id not in chosen.values():
            chosen[slot] = node_id
    free = [node for node in nodes if node.id not in chosen.values()]
    for slot in (s for s in grid.slots() if s not in chosen):
        ring = (grid.protector(slot), grid.protected(slot))
        beside_it = ring if apart else grid.pipeline(slot.pipeline)
        near = {zones[chosen[s]] for s in beside_it if s in chosen}
        taken = min(free, key=lambda n: ((n.zone in near) is apart, n.zone, n.id))
        free.remove(taken)
        chosen[slot] = taken.id
    return tuple(chosen[slot] for slot in grid.slots())
