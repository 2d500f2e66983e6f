"""Who gets which slot: nodes in order of zone and id, pipelines within a zone where possible."""

from collections.abc import Sequence
from itertools import groupby

from bamboo.core.state import Node
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import BARE_MODES


def assign(nodes: Sequence[Node], grid: Grid, redundancy: str) -> Assignment:
    """One node for each slot, the same for every order in which `nodes` are given.

    A zone with enough nodes for whole pipelines takes them first, so traffic between neighbours
    stays within it; what is left over is filled in order of zone, then id. Each slot's shadow is
    the owner of its protector, or None when redundancy is "off". Nodes that the grid does not need
    get nothing. Raises CoreMisuse when there are fewer nodes than slots.
    """
    if len(nodes) < grid.size:
        raise CoreMisuse(f"{len(nodes)} nodes cannot fill {grid.size} slots")
    ordered = sorted(nodes, key=lambda node: (node.zone, node.id))
    whole: list[NodeId] = []
    rest: list[NodeId] = []
    for _, members in groupby(ordered, key=lambda node: node.zone):
        ids = [node.id for node in members]
        in_pipelines = len(ids) // grid.stages * grid.stages
        whole.extend(ids[:in_pipelines])
        rest.extend(ids[in_pipelines:])
    owners = tuple((whole + rest)[: grid.size])
    bare = Assignment(grid=grid, owners=owners, shadows=(None,) * grid.size)
    if redundancy in BARE_MODES:
        return bare
    shadows = {slot: bare.owner(grid.protector(slot)) for slot in grid.slots()}
    return bare.replace(owners={}, shadows=shadows)
