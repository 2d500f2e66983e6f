"""What each node of an assignment owns and shadows, and which slots are out of order.

Rule: it follows from the assignment alone. It is computed once, on first use. An assignment with a
few changed slots takes the roles of the previous one and corrects them for those slots.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import eq, ne

from bamboo.ids import NodeId
from bamboo.topology.grid import Grid

Owners = Sequence[NodeId]
Shadows = Sequence[NodeId | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roles:
    """Slots are given by their numbers in `Grid.slots()`, ascending. The value never changes after
    it is made."""

    grid: Grid
    owned: dict[NodeId, tuple[int, ...]]
    """The slots of each owner."""
    shadowed: dict[NodeId, tuple[int, ...]]
    """The slots of each shadow."""
    several: frozenset[NodeId]
    """Owners of more than one slot."""
    landless: frozenset[NodeId]
    """Shadows that own nothing."""
    astray: frozenset[int]
    """Slots whose shadow is not the owner of their protector, or whose owner owns that too."""

    @classmethod
    def of(cls, grid: Grid, owners: Owners, shadows: Shadows) -> "Roles":
        """Computed from the whole assignment."""
        owned, shadowed = _numbers(owners), _numbers(shadows)
        numbers = range(grid.size)
        ahead = [owners[grid.before(number)] for number in numbers]
        astray = set(compress(numbers, map(ne, shadows, ahead)))
        several: frozenset[NodeId] = frozenset()
        if len(owned) < grid.size:
            several = frozenset(node for node, held in owned.items() if len(held) > 1)
            astray.update(compress(numbers, map(eq, owners, ahead)))
        return cls(
            grid=grid,
            owned=owned,
            shadowed=shadowed,
            several=several,
            landless=frozenset(shadowed.keys() - owned.keys()),
            astray=frozenset(astray),
        )

    def corrected(
        self, before: tuple[Owners, Shadows], after: tuple[Owners, Shadows], numbers: Iterable[int]
    ) -> "Roles":
        """The roles of the assignment `after`, given that these are the roles of `before` and that
        the two differ at most in the slots of these numbers."""
        owned, shadowed = self.owned.copy(), self.shadowed.copy()
        touched: set[NodeId | None] = set()
        looked_at: set[int] = set()
        for number in numbers:
            for held, was, now in zip((owned, shadowed), before, after, strict=True):
                if was[number] != now[number]:
                    _hand_on(held, number, was[number], now[number])
                    touched |= {was[number], now[number]}
            looked_at |= {number, self.grid.after(number)}
        nodes = frozenset(node for node in touched if node is not None)
        return Roles(
            grid=self.grid,
            owned=owned,
            shadowed=shadowed,
            several=(self.several - nodes) | {n for n in nodes if len(owned.get(n, ())) > 1},
            landless=(self.landless - nodes)
            | {n for n in nodes if n in shadowed and n not in owned},
            astray=(self.astray - looked_at)
            | {n for n in looked_at if _astray(self.grid, *after, n)},
        )

    def __len__(self) -> int:
        """Number of nodes that own or shadow something."""
        return len(self.owned) + len(self.landless)

    def has(self, node: NodeId) -> bool:
        """Whether `node` owns or shadows anything."""
        return node in self.owned or node in self.shadowed


def _numbers(nodes: Shadows) -> dict[NodeId, tuple[int, ...]]:
    """The indices of each node, in the order in which the nodes appear."""
    found: dict[NodeId, tuple[int, ...]] = {
        node: (number,) for number, node in enumerate(nodes) if node is not None
    }
    if len(found) == len(nodes):
        return found
    several: dict[NodeId, list[int]] = {}
    for number, node in enumerate(nodes):
        if node is not None:
            several.setdefault(node, []).append(number)
    return {node: tuple(numbers) for node, numbers in several.items()}


def _astray(grid: Grid, owners: Owners, shadows: Shadows, number: int) -> bool:
    ahead = owners[grid.before(number)]
    return shadows[number] != ahead or owners[number] == ahead


def _hand_on(
    held: dict[NodeId, tuple[int, ...]], number: int, giver: NodeId | None, taker: NodeId | None
) -> None:
    if giver is not None:
        left = tuple(other for other in held[giver] if other != number)
        if left:
            held[giver] = left
        else:
            del held[giver]
    if taker is not None:
        held[taker] = tuple(sorted((*held.get(taker, ()), number)))
