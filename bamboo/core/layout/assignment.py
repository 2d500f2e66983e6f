"""Makes the first assignment of a run: nodes in order of zone and id, pipelines within one zone
where possible, or neighbours in different zones where the job asks for that."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from bamboo.core.layout.target_assignment import shadowed
from bamboo.core.state import Node
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
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
