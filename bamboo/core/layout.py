"""Chooses the layout for a number of nodes, the node for each slot, and the shadow of each slot.

Rules. (1) The first assignment takes nodes in order of zone and id, pipelines within one zone where
possible, or neighbours in different zones where the job asks for that. (2) The grid is the one with
the shortest step among those that there are nodes for, and of equals the smallest. Where step times
are unknown it has as many whole pipelines as there are nodes for, or one shorter pipeline if there
are fewer nodes than stages. (3) In a new layout the node that holds most of what a slot and its
replica need gets the slot, so that little is sent. Slots that no node holds anything of are filled
with nodes from the zones of their pipeline or, if neighbours should lie in different zones, from
zones that the neighbours are not in; pipelines of one stage, from the zones with the fewest of
them. (4) The replica of a slot lies with the nearest owner before it in the ring that is another
node. With one slot for each node that is the neighbour (Thorpe et al., Bamboo, NSDI 2023), and the
loss of any single node leaves a copy of everything. Where neighbours should lie in different zones,
an owner in another zone is preferred over a nearer one in the same zone, so a loss within one zone
leaves a copy of everything too.

All of it are functions of their arguments alone.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from operator import attrgetter

from bamboo.core.state import Node, Policy
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId, ZoneId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout, equal_shares
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import BARE_MODES


def assign(
    nodes: Sequence[Node], grid: Grid, redundancy: str, *, apart: bool = False
) -> Assignment:
    """Choose one node for each slot, the same for every order in which `nodes` are given.

    Zones with enough nodes for whole pipelines get these first, so that traffic between neighbours
    stays within a zone. The other slots are filled in order of zone, then id. The shadow of a slot
    is the owner of its protector, or None in a mode without replicas. Nodes that the grid does not
    need get nothing. `apart`: neighbours of a ring lie in different zones where there are nodes for
    that, and a shadow in another zone than its owner; with one stage, pipelines take turns over the
    zones. Raises CoreMisuse when there are fewer nodes than slots.
    """
    if len(nodes) < grid.size:
        raise CoreMisuse(f"{len(nodes)} nodes cannot fill {grid.size} slots")
    ordered = sorted(nodes, key=lambda node: (node.zone, node.id))
    if apart:
        return _assign_apart(ordered, grid, redundancy)
    whole: list[NodeId] = []
    rest: list[NodeId] = []
    for _, members in groupby(ordered, key=lambda node: node.zone):
        ids = [node.id for node in members]
        in_pipelines = len(ids) // grid.stages * grid.stages
        whole.extend(ids[:in_pipelines])
        rest.extend(ids[in_pipelines:])
    owners = tuple((whole + rest)[: grid.size])
    if redundancy in BARE_MODES:
        return Assignment(grid=grid, owners=owners, shadows=(None,) * grid.size)
    return shadowed(grid, owners, frozenset(owners))


def _assign_apart(ordered: Sequence[Node], grid: Grid, redundancy: str) -> Assignment:
    left: dict[str, list[NodeId]] = {}
    for node in ordered:
        left.setdefault(node.zone, []).append(node.id)
    chosen: list[str] = []
    owners: list[NodeId] = []
    for slot in grid.slots():
        zone = _next_zone({zone: len(ids) for zone, ids in left.items()}, chosen, slot, grid)
        chosen.append(zone)
        owners.append(left[zone].pop(0))
    if redundancy in BARE_MODES:
        return Assignment(grid=grid, owners=tuple(owners), shadows=(None,) * grid.size)
    zones = {node.id: node.zone for node in ordered}
    by_zone = zones if len(set(zones.values())) > 1 else None
    return shadowed(grid, tuple(owners), frozenset(owners), by_zone)


def _next_zone(left: Mapping[str, int], chosen: Sequence[str], slot: Slot, grid: Grid) -> str:
    """The zone with the most nodes left that is not the zone of a neighbour. Of equals the zone of
    the ring's first slot, so that it is not left for the last slot, which is next to the first.
    With one stage the zone with the fewest pipelines."""
    if grid.stages == 1:
        able = (zone for zone, count in left.items() if count)
        return min(able, key=lambda zone: (chosen.count(zone), -left[zone], zone))
    first = chosen[-slot.stage] if slot.stage else None
    beside = {chosen[-1]} if slot.stage else set()
    if slot.stage == grid.stages - 1:
        beside.add(chosen[-slot.stage])
    return min(
        (zone for zone, count in left.items() if count),
        key=lambda zone: (zone in beside, -left[zone], zone != first, zone),
    )


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


def shadowed(
    grid: Grid,
    owners: tuple[NodeId, ...],
    usable: Collection[NodeId],
    zones: Mapping[NodeId, str] | None = None,
) -> Assignment:
    """Make an assignment with these owners, all usable, and with shadows by rule 4."""
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
