"""Which layout so many nodes should have, and who of them takes which slot.

Rules. (1) The grid with the shortest step of those that there are nodes for, of equals the
smallest. Where nobody knows how long steps take: as many whole pipelines as there are nodes for;
with fewer nodes than stages one shorter pipeline. (2) Whoever holds most of what a slot and its
replica need gets the slot, so that little is sent. (3) Functions of their arguments alone. (4) The
rest of a pipeline comes from its zones, or from those that its neighbours are not in, where they
are to lie apart.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter

from bamboo.core.policy import Policy
from bamboo.core.state import Node
from bamboo.core.target_assignment import shadowed
from bamboo.ids import NodeId, ZoneId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout, equal_shares
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import BARE_MODES


def grid_for(nodes: int, policy: Policy) -> Grid:
    """The grid for so many nodes, at least one."""
    return _fastest(nodes, policy) or _fullest(nodes, policy)


def layout_for(nodes: int, policy: Policy) -> ModelLayout:
    """The layout for so many nodes, at least one."""
    grid = grid_for(nodes, policy)
    return ModelLayout(
        grid=grid,
        cut=policy.cut_for(grid.stages),
        shares=equal_shares(policy.virtual_nodes, grid.pipelines),
    )


def nodes_wanted(available: int, policy: Policy, *, standbys: int) -> int:
    """How many of so many nodes that are to be had a run should have: those of the grid that they
    are enough for, and the standbys; what is beyond would be paid for nothing."""
    return min(available, grid_for(available, policy).size + standbys)


def _fastest(nodes: int, policy: Policy) -> Grid | None:
    """By the planner's figures; None where they have none for so few nodes."""
    able = [g for g in policy.grids if g.pipelines * g.stages <= nodes]
    if not able:
        return None
    # Asked at every event, and there may be many grids: a key for each would take longer.
    shortest_s = min(map(attrgetter("step_s"), able))
    best = min((g for g in able if g.step_s == shortest_s), key=lambda g: (g.size, g.stages))
    return Grid(pipelines=best.pipelines, stages=best.stages)


def _fullest(nodes: int, policy: Policy) -> Grid:
    """As many whole pipelines as can be, or one shorter one."""
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
    """Owners and shadows of every slot. `held`: the layers that each node has already; `apart`:
    neighbours are to lie in different zones."""
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
    """Give the slots that nobody has to nodes without one: by zone first, then by id."""
    if len(chosen) == grid.size:
        return
    zones = {node.id: node.zone for node in nodes}
    taken = set(chosen.values())
    free: dict[ZoneId, deque[NodeId]] = {}
    for node in sorted(nodes, key=lambda n: n.id):
        if node.id not in taken:
            free.setdefault(node.zone, deque()).append(node.id)
    for slot in grid.slots():
        if slot in chosen:
            continue
        ring = (grid.protector(slot), grid.protected(slot))
        beside = ring if apart else grid.pipeline(slot.pipeline)
        near = {zones[chosen[s]] for s in beside if s in chosen}
        zone = min((z for z in free if free[z]), key=lambda z: ((z in near) is apart, z))
        chosen[slot] = free[zone].popleft()


def _in_order(nodes: Sequence[Node], slots: Sequence[Slot]) -> dict[Slot, NodeId]:
    """Neighbouring slots to one node, as evenly as can be."""
    ids = sorted(node.id for node in nodes)
    return {slot: ids[i * len(ids) // len(slots)] for i, slot in enumerate(slots)}


def _by_what_is_held(
    nodes: Sequence[Node], layout: ModelLayout, held: Mapping[NodeId, frozenset[int]]
) -> dict[Slot, NodeId]:
    """Slots for all that hold anything of them, the best fits first; of equals the first node, then
    the first slot. What a slot needs hangs on its stage alone, so the first pipeline that still
    lacks the stage is the one to go to."""
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
    # Of each stage the number of the first slot that nobody has: the lower, the earlier pipeline.
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
    """The stages of which a node has anything, by how much of what the owner needs, as a negative
    number: what it is to own counts twice, what it is to shadow once."""
    own = [len(have.intersection(range(first, stop))) for first, stop in pairwise(cut)]
    scores = (2 * mine + beside for mine, beside in zip(own, (*own[1:], own[0]), strict=True))
    alike: dict[int, tuple[int, ...]] = {}
    for stage, score in enumerate(scores):
        if score:
            alike[-score] = (*alike.get(-score, ()), stage)
    return tuple(alike.items())
