"""Who has what in an assignment, and where it is out of order: what is asked of it most.

Rule: it follows from the assignment alone. It is worked out once, when it is first asked for; an
assignment with a few slots changed has that of the one before it, corrected for those slots.
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
    """Slots are given by their numbers in `Grid.slots()`, ascending. Nothing in here is changed
    once it is made."""

    grid: Grid
    owned: dict[NodeId, tuple[int, ...]]
    """What each owner owns."""
    shadowed: dict[NodeId, tuple[int, ...]]
    """What each shadow shadows."""
    several: frozenset[NodeId]
    """Owners of more than one slot."""
    landless: frozenset[NodeId]
    """Shadows that own nothing."""
    astray: frozenset[int]
    """Slots that are not shadowed by the owner of their protector, or own their protector too."""

    @classmethod
    def of(cls, grid: Grid, owners: Owners, shadows: Shadows) -> "Roles":
        """Worked out from the whole assignment."""
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
        """Of the assignment `after`, which differs from `before`, whose roles these are, in the
        slots of these numbers at most."""
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
        """How many nodes own or shadow something."""
        return len(self.owned) + len(self.landless)

    def has(self, node: NodeId) -> bool:
        """Whether `node` owns or shadows anything."""
        return node in self.owned or node in self.shadowed


def _numbers(nodes: Shadows) -> dict[NodeId, tuple[int, ...]]:
    """Of each node, in the order in which they appear, where it stands."""
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
