"""Virtual nodes: fixed slices of the global batch, and the pipeline that computes each of them."""

from dataclasses import dataclass
from functools import lru_cache

from bamboo.topology.reduction import subtrees


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """How one step's batch is cut: `virtual_nodes` slices of `microbatches` microbatches each."""

    virtual_nodes: int
    microbatches: int
    evaluated: int = 0
    """Microbatches of an evaluation; 0: there are none."""

    @property
    def total(self) -> int:
        """Microbatches in a step."""
        return self.virtual_nodes * self.microbatches

    def virtual_node_of(self, microbatch: int) -> int:
        """The virtual node that the global microbatch index belongs to."""
        return microbatch // self.microbatches

    def microbatches_of(self, virtual_nodes: range) -> tuple[int, ...]:
        """Global microbatch indices of a block of virtual nodes, in order."""
        return tuple(
            range(virtual_nodes.start * self.microbatches, virtual_nodes.stop * self.microbatches)
        )


@lru_cache(maxsize=256)
def blocks(virtual_nodes: int, pipelines: int) -> tuple[range, ...]:
    """Consecutive blocks of virtual nodes, one per pipeline, each of floor or ceil of V/D.

    Among all orders of floor and ceil, the one with the fewest subtrees of the canonical tree is
    taken (ties: ceils first), because each subtree is one partial sum to hold and to send.
    Raises ValueError when there are more pipelines than virtual nodes.
    """
    if pipelines < 1 or virtual_nodes < pipelines:
        raise ValueError(f"{virtual_nodes} virtual nodes cannot feed {pipelines} pipelines")
    floor, ceils = divmod(virtual_nodes, pipelines)
    # From the last block on, so that any number of pipelines works. By the ceils among the last
    # `left` blocks: the fewest subtrees of these blocks, and the size of the first one.
    fewest = {0: 0}
    sizes: list[dict[int, int]] = [{}]
    for left in range(1, pipelines + 1):
        rest, fewest = fewest, {}
        sizes.append({})
        for among in range(max(0, ceils - pipelines + left), min(ceils, left) + 1):
            start = (pipelines - left) * floor + ceils - among
            options = [
                (rest[after] + len(subtrees(start, start + size, virtual_nodes)), size)
                for size, after in ((floor + 1, among - 1), (floor, among))
                if after in rest
            ]
            fewest[among], sizes[left][among] = min(options, key=lambda option: option[0])
    out = []
    start = 0
    among = ceils
    for left in range(pipelines, 0, -1):
        size = sizes[left][among]
        out.append(range(start, start + size))
        start += size
        among -= size - floor
    return tuple(out)


def blocks_of(shares: tuple[int, ...]) -> tuple[range, ...]:
    """Consecutive blocks of virtual nodes of these sizes, one per pipeline."""
    out, start = [], 0
    for size in shares:
        out.append(range(start, start + size))
        start += size
    return tuple(out)


def evaluated_by(block: range, virtual_nodes: int, total: int) -> range:
    """The microbatches of an evaluation, of which there are `total`, that the pipeline with this
    block of virtual nodes computes: as large a share of them as it has of a step."""
    return range(block.start * total // virtual_nodes, block.stop * total // virtual_nodes)
