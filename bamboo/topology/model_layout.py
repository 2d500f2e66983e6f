"""The layout of the model on a grid: the layers of each stage, the virtual nodes of each pipeline.

Rule: a layout decides time and bill and no bit. Two layouts hold the same tensors under the same
layer's name, so state can move between any two layouts.
"""

from dataclasses import dataclass
from heapq import heapify, heapreplace

from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from bamboo.topology.virtual_nodes import blocks, blocks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayout:
    """`cut[p]` is the first layer of stage p, `cut[P]` the layer count; `shares[d]` virtual nodes
    go to pipeline d, in order. Raises ValueError when cut or shares do not fit the grid."""

    grid: Grid
    cut: tuple[int, ...]
    shares: tuple[int, ...]

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.cut, self.cut[1:], strict=False))
        if len(self.cut) != self.grid.stages + 1 or self.cut[0] != 0 or not ascending:
            raise ValueError(f"{self.cut} is no cut into {self.grid.stages} stages")
        if len(self.shares) != self.grid.pipelines or min(self.shares) < 1:
            raise ValueError(f"{self.shares} are no shares of {self.grid.pipelines} pipelines")

    def layers_of(self, slot: Slot) -> range:
        """Global layer indices of a slot's stage."""
        return range(self.cut[slot.stage], self.cut[slot.stage + 1])

    def blocks(self) -> tuple[range, ...]:
        """The virtual nodes of each pipeline: consecutive, in pipeline order."""
        return blocks_of(self.shares)


def equal_shares(virtual_nodes: int, pipelines: int) -> tuple[int, ...]:
    """Floor or ceil of V/D for each pipeline, in the order with the fewest partial sums.

    Raises ValueError when there are more pipelines than virtual nodes.
    """
    return tuple(len(block) for block in blocks(virtual_nodes, pipelines))


def minimax_shares(virtual_nodes: int, speeds: tuple[float, ...]) -> tuple[int, ...]:
    """Whole shares, at least one each, with which the slowest pipeline finishes earliest.

    `speeds[d]`: virtual nodes per second of pipeline d, up to a common factor. Each next virtual
    node goes to the pipeline that finishes it earliest, which is optimal for equal pieces of work
    (Graham's rule with uniform machines and one job size); among equal ones, to the first.
    Raises ValueError when there are more pipelines than virtual nodes, or a speed is not positive.
    """
    if len(speeds) > virtual_nodes or min(speeds) <= 0:
        raise ValueError(f"{virtual_nodes} virtual nodes cannot be shared by speeds {speeds}")
    shares = [1] * len(speeds)
    ends = [(2 / speed, pipeline) for pipeline, speed in enumerate(speeds)]  # with one more
    heapify(ends)
    for _ in range(virtual_nodes - len(speeds)):
        _, soonest = ends[0]
        shares[soonest] += 1
        heapreplace(ends, ((shares[soonest] + 1) / speeds[soonest], soonest))
    return tuple(shares)
