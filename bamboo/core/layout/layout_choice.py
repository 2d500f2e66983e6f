"""Chooses the layout for a number of nodes, and the node for each slot.

Rules. (1) The grid is the one with the shortest step among those that there are nodes for, and of
equals the smallest. Where step times are unknown it has as many whole pipelines as there are nodes
for, or one shorter pipeline if there are fewer nodes than stages. (2) The node that holds most of
what a slot and its replica need gets the slot, so that little is sent. (3) Slots that no node holds
anything of are filled with nodes from the zones of their pipeline or, if neighbours should lie in
different zones, from zones that the neighbours are not in; pipelines of one stage, from the zones
with the fewest of them. All of it are functions of their arguments alone.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter

from bamboo.core.layout.target_assignment import shadowed
from bamboo.core.state import Node, Policy
from bamboo.ids import NodeId, ZoneId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout, equal_shares
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import BARE_MODES


def grid_for(nodes: int, policy: Policy) -> Grid:
    """The grid for this number of nodes, which must be at least one."""
    return _fastest(nodes, policy) or _fullest(nodes, policy)


def layout_for(nodes: int, policy: Policy) -> ModelLayout:
    """The layout for this number of nodes, which must be at least one."""
    grid = grid_for(nodes, policy)
    return ModelLayout(
        grid=grid,
        cut=policy.cut_for(grid.stages),
        shares=equal_shares(policy.virtual_nodes, grid.pipelines),
    )


def nodes_wanted(available: int, policy: Policy, *, standbys: int) -> int:
    """How many of the available nodes a run should have: those of the grid that they suffice for,
    and the standbys. More would be paid for nothing."""
    return min(available, grid_for(available, policy).size + standbys)


def _fastest(nodes: int, policy: Policy) -> Grid | None:
    """The grid by the planner's figures; None if they have none for so few nodes."""
    able = [g for g in policy.grids if g.pipelines * g.stages <= nodes]
    if not able:
        return None
    # This is computed at every event, with many grids; building a key for each takes longer.
    shortest_s = min(map(attrgetter("step_s"), able))
    best = min((g for g in able if g.step_s == shortest_s), key=lambda g: (g.size, g.stages))
    return Grid(pipelines=best.pipelines, stages=best.stages)


def _fullest(nodes: int, policy: Policy) -> Grid:
    """The grid with as many whole pipelines as possible, or with one shorter pipeline."""
    able = [len(cut) - 1 for cut in policy.cuts]
    stages = max((p for p in able if p <= min(nodes, policy.stages)), default=min(able))
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
    """Choose owner and shadow of every slot. `held`: the layers that each node holds already;
    `apart`: neighbours should lie in different zones."""
    grid, zones = layout.grid, {node.id: node.zone for node in nodes}
    slots = grid.slots()
    if len(nodes) < len(slots):
        chosen = _in_order(nodes, slots)
    else:
        chosen = _by_what_is_held(nodes, layout, held)
        _fill_up(chosen, nodes, grid, apart=apart)
    owners = tuple(chosen[slot] for slot in slots)
    if mode in BARE_MODES:
        return Assignment(grid=grid, owners=owners, shadows=(None,) * grid.size)
    by_zone = zones if apart and len({*zones.values()}) > 1 else None
    return shadowed(grid, owners, frozenset(zones), by_zone)


def _fill_up(chosen: dict[Slot, NodeId], nodes: Sequence[Node], grid: Grid, *, apart: bool) -> None:
    """Give the slots without an owner to nodes without a slot, by zone first, then by id."""
    if len(chosen) == grid.size:
        return
    zones = {node.id: node.zone for node in nodes}
    taken = set(chosen.values())
    free: dict[ZoneId, deque[NodeId]] = {}
    for node in sorted(nodes, key=lambda n: n.id):
        if node.id not in taken:
            free.setdefault(node.zone, deque()).append(node.id)
    pipelines = Counter(zones[node] for node in taken)
    for slot in grid.slots():
        if slot in chosen:
            continue
        if apart and grid.stages == 1:
            zone = min((z for z in free if free[z]), key=lambda z: (pipelines[z], z))
            pipelines[zone] += 1
            chosen[slot] = free[zone].popleft()
            continue
        ring = (grid.protector(slot), grid.protected(slot))
        beside = ring if apart else grid.pipeline(slot.pipeline)
        near = {zones[chosen[s]] for s in beside if s in chosen}
        zone = min((z for z in free if free[z]), key=lambda z: ((z in near) is apart, z))
        chosen[slot] = free[zone].popleft()


def _in_order(nodes: Sequence[Node], slots: Sequence[Slot]) -> dict[Slot, NodeId]:
    """Give neighbouring slots to one node, as evenly as possible."""
    ids = sorted(node.id for node in nodes)
    return {slot: ids[i * len(ids) // len(slots)] for i, slot in enumerate(slots)}


def _by_what_is_held(
    nodes: Sequence[Node], layout: ModelLayout, held: Mapping[NodeId, frozenset[int]]
) -> dict[Slot, NodeId]:
    """Give slots to the nodes that hold anything of them, the best fits first; of equals the first
    node, then the first slot. What a slot needs depends on its stage alone, so a node goes to the
    first pipeline that still lacks the stage."""
    grid = layout.grid
    scores = {have: _scores(have, layout.cut) for have in {*held.values()}}  # many hold the same
    fits = [
        (lack, node.id, alike)
        for node in nodes
        if node.id in held
        for lack, alike in scores[held[node.id]]
    ]
    fits.sort()
    slots, stages = grid.slots(), grid.stages
    # For each stage the number of its first slot without an owner, pipeline by pipeline.
    open_at = list(range(stages))
    chosen: dict[Slot, NodeId] = {}
    placed: set[NodeId] = set()
    for _, node_id, alike in fits:
        if node_id in placed:
            continue
        number = min(open_at[stage] for stage in alike)
        if number >= grid.size:
            continue
        chosen[slots[number]] = node_id
        open_at[number % stages] += stages
        placed.add(node_id)
        if len(chosen) == grid.size:
            break
    return chosen


@lru_cache(maxsize=1024)
def _scores(have: frozenset[int], cut: tuple[int, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The stages of which a node holds anything, each with its score as a negative number. Layers
    that the node would own count twice, layers that it would shadow once."""
    own = [len(have.intersection(range(first, stop))) for first, stop in pairwise(cut)]
    scores = (2 * mine + beside for mine, beside in zip(own, (*own[1:], own[0]), strict=True))
    alike: dict[int, tuple[int, ...]] = {}
    for stage, score in enumerate(scores):
        if score:
            alike[-score] = (*alike.get(-score, ()), stage)
    return tuple(alike.items())
