"""The canonical binary tree by which gradients of virtual nodes are added, on whatever machines.

Rule: n leaves split at the largest power of two below n. A sum over any mapping of leaves to
machines that only ever adds siblings of this tree is bitwise the same; naive partial sums are not.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def split(lo: int, hi: int) -> int:
    """Where the tree node over leaves [lo, hi) splits; needs at least two leaves."""
    n = hi - lo
    if n < 2:
        raise ValueError(f"[{lo}, {hi}) has no split")
    return lo + (1 << ((n - 1).bit_length() - 1))


def subtrees(lo: int, hi: int, leaves: int) -> tuple[tuple[int, int], ...]:
    """The fewest nodes of the tree over [0, leaves) that cover the block [lo, hi), in order."""
    out: list[tuple[int, int]] = []

    def walk(a: int, b: int) -> None:
        if lo <= a and b <= hi:
            out.append((a, b))
        elif a < hi and lo < b:
            mid = split(a, b)
            walk(a, mid)
            walk(mid, b)

    if lo < hi:
        walk(0, leaves)
    return tuple(out)


class TreeSum(Generic[T]):
    """Adds tree nodes as they come, in any order, and merges siblings at once.

    `push` takes the value of the tree node over leaves [lo, hi). When both children of a node are
    there, `add(left, right)` replaces them. What remains is the fewest partial sums.
    """

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        self._add = add
        self._parent: dict[
            tuple[int, int], tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
        ] = {}
        self._partials: dict[tuple[int, int], T] = {}
        self._root = (0, leaves)
        self._index(0, leaves)

    def _index(self, lo: int, hi: int) -> None:
        if hi - lo > 1:
            mid = split(lo, hi)
            for child in ((lo, mid), (mid, hi)):
                self._parent[child] = ((lo, hi), (lo, mid), (mid, hi))
                self._index(*child)

    def push(self, lo: int, hi: int, value: T) -> None:
        """Add the sum over leaves [lo, hi), which must be a node of the tree."""
        node = (lo, hi)
        if node != self._root and node not in self._parent:
            raise ValueError(f"[{lo}, {hi}) is no node of the tree over {self._root[1]} leaves")
        self._partials[node] = value
        while node in self._parent:
            parent, left, right = self._parent[node]
            if left not in self._partials or right not in self._partials:
                return
            value = self._add(self._partials.pop(left), self._partials.pop(right))
            self._partials[parent] = value
            node = parent

    @property
    def partials(self) -> dict[tuple[int, int], T]:
        """The partial sums held now, by their range of leaves, in leaf order."""
        return dict(sorted(self._partials.items()))

    @property
    def root(self) -> T | None:
        """The whole sum once every leaf was pushed, else None."""
        return self._partials.get(self._root)
