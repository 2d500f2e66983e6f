"""Which node owns, and which node shadows, each slot of the grid."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bamboo.ids import NodeId
from bamboo.topology.grid import Grid
from bamboo.topology.roles import Roles
from bamboo.topology.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Every slot has one owner. A slot that has no replica, or has lost it, has no shadow."""

    grid: Grid
    owners: tuple[NodeId, ...]
    shadows: tuple[NodeId | None, ...]
    _roles: Roles | None = field(init=False, compare=False, repr=False)
    _members: frozenset[NodeId] | None = field(init=False, compare=False, repr=False)
    """Both are None until they are first needed."""

    def __post_init__(self) -> None:
        if not len(self.owners) == len(self.shadows) == self.grid.size:
            raise ValueError("an assignment names one owner and one shadow or none for each slot")
        object.__setattr__(self, "_roles", None)
        object.__setattr__(self, "_members", None)

    @property
    def roles(self) -> Roles:
        """What each node owns and shadows."""
        if self._roles is None:
            found = Roles.of(self.grid, self.owners, self.shadows)
            object.__setattr__(self, "_roles", found)
            return found
        return self._roles

    def owner(self, slot: Slot) -> NodeId:
        return self.owners[self.grid.number(slot)]

    def shadow(self, slot: Slot) -> NodeId | None:
        return self.shadows[self.grid.number(slot)]

    def owned_by(self, node: NodeId) -> tuple[Slot, ...]:
        slots = self.grid.slots()
        return tuple(slots[number] for number in self.roles.owned.get(node, ()))

    def shadowed_by(self, node: NodeId) -> tuple[Slot, ...]:
        slots = self.grid.slots()
        return tuple(slots[number] for number in self.roles.shadowed.get(node, ()))

    def members(self) -> frozenset[NodeId]:
        """All nodes that own or shadow something."""
        if self._members is None:
            found = frozenset(self.roles.owned) | self.roles.landless
            object.__setattr__(self, "_members", found)
            return found
        return self._members

    def replace(
        self, *, owners: Mapping[Slot, NodeId], shadows: Mapping[Slot, NodeId | None]
    ) -> "Assignment":
        """The same assignment with some owners and shadows changed. Raises CoreMisuse for a slot
        of another grid."""
        if not owners and not shadows:
            return self
        now_owning, now_shadowing = list(self.owners), list(self.shadows)
        for slot, node in owners.items():
            now_owning[self.grid.number(slot)] = node
        for slot, shadow in shadows.items():
            now_shadowing[self.grid.number(slot)] = shadow
        changed = Assignment(grid=self.grid, owners=tuple(now_owning), shadows=tuple(now_shadowing))
        if self._roles is not None:
            numbers = {self.grid.number(slot) for slot in (*owners, *shadows)}
            roles = self._roles.corrected(
                (self.owners, self.shadows), (changed.owners, changed.shadows), numbers
            )
            object.__setattr__(changed, "_roles", roles)
        return changed
