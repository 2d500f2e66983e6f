"""Which node owns, and which node shadows, each slot of the grid."""

from collections.abc import Mapping
from dataclasses import dataclass

from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Every slot has one owner; a slot whose replica was lost, or that has none, has no shadow."""

    grid: Grid
    owners: tuple[NodeId, ...]
    shadows: tuple[NodeId | None, ...]

    def __post_init__(self) -> None:
        if not len(self.owners) == len(self.shadows) == self.grid.size:
            raise ValueError("an assignment names one owner and one shadow or none for each slot")

    def _index(self, slot: Slot) -> int:
        if not (0 <= slot.pipeline < self.grid.pipelines and 0 <= slot.stage < self.grid.stages):
            grid = f"{self.grid.pipelines} x {self.grid.stages}"
            raise CoreMisuse(f"slot {slot} is none of the grid {grid}")
        return slot.pipeline * self.grid.stages + slot.stage

    def owner(self, slot: Slot) -> NodeId:
        return self.owners[self._index(slot)]

    def shadow(self, slot: Slot) -> NodeId | None:
        return self.shadows[self._index(slot)]

    def owned_by(self, node: NodeId) -> tuple[Slot, ...]:
        return tuple(s for s, n in zip(self.grid.slots(), self.owners, strict=True) if n == node)

    def shadowed_by(self, node: NodeId) -> tuple[Slot, ...]:
        return tuple(s for s, n in zip(self.grid.slots(), self.shadows, strict=True) if n == node)

    def members(self) -> frozenset[NodeId]:
        """All nodes that own or shadow something."""
        return frozenset(self.owners) | frozenset(n for n in self.shadows if n is not None)

    def replace(
        self, *, owners: Mapping[Slot, NodeId], shadows: Mapping[Slot, NodeId | None]
    ) -> "Assignment":
        """The same assignment with some owners and shadows changed."""
        slots = self.grid.slots()
        return Assignment(
            grid=self.grid,
            owners=tuple(owners.get(s, self.owner(s)) for s in slots),
            shadows=tuple(shadows[s] if s in shadows else self.shadow(s) for s in slots),
        )
