"""Which layout so many nodes should have, and who of them takes which slot.

Rules. (1) The grid with the shortest step of those that there are nodes for, of equals the
smallest. Where nobody knows how long steps take: as many whole pipelines as there are nodes for;
with fewer nodes than stages one shorter pipeline. (2) Whoever holds most of what a slot and its
replica need gets the slot, so that little is sent. (3) Functions of their arguments alone. (4) The
rest of a pipeline comes from its zones, or from those that its neighbours are not in, where they
are to lie apart.
"""

from collections.abc import Mapping, Sequence

from bamboo.core.aim import shadow_of
from bamboo.core.policy import Policy
from bamboo.core.state import Node
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout, equal_shares
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import BARE_MODES


def layout_for(nodes: int, policy: Policy) -> ModelLayout:
    """The layout for so many nodes, at least one."""
    grid = _fastest(nodes, policy) or _fullest(nodes, policy)
    return ModelLayout(
        grid=grid,
        cut=policy.cut_for(grid.stages),
        shares=equal_shares(policy.virtual_nodes, grid.pipelines),
    )


def nodes_wanted(available: int, policy: Policy, *, standbys: int) -> int:
    """How many of so many nodes that are to be had a run should have: those of the grid that they
    are enough for, and the standbys; what is beyond would be paid for nothing."""
    grid = layout_for(available, policy).grid
    return min(available, grid.size + standbys)


def _fastest(nodes: int, policy: Policy) -> Grid | None:
    """By the planner's figures; None where they have none for so few nodes."""
    able = [g for g in policy.grids if g.pipelines * g.stages <= nodes]
    if not able:
        return None
    best = min(able, key=lambda g: (g.step_s, g.pipelines * g.stages, g.stages))
    return Grid(pipelines=best.pipelines, stages=best.stages)


def _fullest(nodes: int, policy: Policy) -> Grid:
    """As many whole pipelines as can be, or one shorter one."""
    able = sorted(len(cut) - 1 for cut in policy.cuts)
    stages = max((p for p in able if p <= min(nodes, policy.stages)), default=able[0])
    pipelines = max(1, min(policy.pipelines, policy.virtual_nodes, nodes // stages))
    return Grid(pipelines=pipelines, stages=stages)


def place(
    nodes: Sequence[Node],
    layout: ModelLayout,
    held: Mapping[NodeId, frozenset[int]],
    mode: str,
    *,
    apart: bool = False,
) -> Assignment:
    """Owners and shadows of every slot. `held`: the layers that each node has already; `apart`:
    neighbours are to lie in different zones."""
    grid, zones = layout.grid, {node.id: node.zone for node in nodes}
    slots = grid.slots()
    if len(nodes) < len(slots):
        chosen = _in_order(nodes, slots)
    else:
        chosen = _by_what_is_held(nodes, layout, held)
        free = sorted((n for n in nodes if n.id not in chosen.values()), key=lambda n: n.id)
        for slot in (s for s in slots if s not in chosen):
            ring = (grid.protector(slot), grid.protected(slot))
            beside = ring if apart else grid.pipeline(slot.pipeline)
            near = {zones[chosen[s]] for s in beside if s in chosen}
            taken = min(free, key=lambda n: ((n.zone in near) is apart, n.zone, n.id))
            free.remove(taken)
            chosen[slot] = taken.id
    bare = Assignment(
        grid=grid, owners=tuple(chosen[slot] for slot in slots), shadows=(None,) * grid.size
    )
    if mode in BARE_MODES:
        return bare
    usable, by_zone = frozenset(zones), zones if apart else None
    shadows = {slot: shadow_of(bare, slot, usable, by_zone) for slot in slots}
    return bare.replace(owners={}, shadows=shadows)


def _in_order(nodes: Sequence[Node], slots: Sequence[Slot]) -> dict[Slot, NodeId]:
    """Neighbouring slots to one node, as evenly as can be."""
    ids = sorted(node.id for node in nodes)
    return {slot: ids[i * len(ids) // len(slots)] for i, slot in enumerate(slots)}


def _by_what_is_held(
    nodes: Sequence[Node], layout: ModelLayout, held: Mapping[NodeId, frozenset[int]]
) -> dict[Slot, NodeId]:
    """Slots for all that hold anything of them, the best fits first."""
    fits = []
    for node in nodes:
        for slot in layout.grid.slots():
            own = frozenset(layout.layers_of(slot))
            beside = frozenset(layout.layers_of(layout.grid.protected(slot)))
            have = held.get(node.id, frozenset())
            score = 2 * len(have & own) + len(have & beside)
            if score:
                fits.append((-score, node.id, slot))
    chosen: dict[Slot, NodeId] = {}
    for _, node_id, slot in sorted(fits):
        if slot not in chosen and node_id not in chosen.values():
            chosen[slot] = node_id
    return chosen
