"""Where gradients are synchronised: the grid, its links, and when backwards pass each layer.

Rule: a plain value. It says for each figure where that is from, so that what is modelled can be
shown with its source.
"""

from bisect import bisect_right
from dataclasses import dataclass

from bamboo.planner.step.links import Link
from bamboo.topology.reduction import TreeSum
from bamboo.topology.shards import FLOAT_BYTES
from bamboo.topology.sync import Sync
from bamboo.topology.virtual_nodes import blocks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Syncing:
    """How a workload's gradients are synchronised, and the rates of nodes that count for it."""

    sync: Sync | str = "tree"
    """The name of a builder, which makes a strategy for each grid, or one strategy for all."""
    zones: tuple[int, ...] = ()
    """The zone of each pipeline, on a grid with as many; empty: all are in one."""
    flops_per_s: float = 0.0
    """See `Situation`; likewise those that follow."""
    added_per_s: float = 0.0
    written_per_s: float = 0.0
    copied_bytes_per_s: float = 0.0
    message_s: float = 0.0
    factor_bytes: int = FLOAT_BYTES
    sums_early: bool = False
    billed_s_per_byte: float = 0.0
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether all goes by `tree` and `dense` in one bucket, as without a strategy."""
        return self.sync in (Sync(), "tree")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A link between two pipelines' nodes of a stage, or a node at what it computes for exchanges,
    that takes `times` as long as the other figures say."""

    stage: int
    pipeline: int
    to: int = -1
    """The other end of the link; -1: it is the node."""
    times: float

    @property
    def is_link(self) -> bool:
        return self.to >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The grid on which parameters are synchronised. Times are in seconds; a rate of 0 means that
    sizes do not matter. Raises ValueError for zones or shares that make no sense."""

    cut: tuple[int, ...]
    """The first layer of each stage, and the layer count."""
    shares: tuple[int, ...]
    """Virtual nodes of each pipeline."""
    microbatches: int
    """Of a virtual node."""
    zones: tuple[int, ...] = ()
    """The zone of each pipeline, as a number; empty: all are in one."""
    replica: bool = True
    """Whether a stage's gradient is shipped to a shadow."""
    factor_bytes: int = FLOAT_BYTES
    """Of a number of a factor: 2 where linear layers compute in bf16."""
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    """Rate of a link between two nodes."""
    node_bytes_per_s: float = 0.0
    """Total send rate of a node."""
    far: Link | None = None
    """The link between nodes of different zones; None: the same as all others."""
    billed_s_per_byte: float = 0.0
    """What a byte between zones costs, in seconds for which its price would rent all nodes."""
    flops_per_s: float = 0.0
    """Rate of the matrix products that form a gradient from factors."""
    added_per_s: float = 0.0
    """Numbers that a node adds, or searches for rows with a bit set, in a second."""
    written_per_s: float = 0.0
    """Numbers that a node writes in a second, of the result of a product or of a whole gradient
    that it puts together and squares; 0: not counted, as where a GPU's memory is fast."""
    copied_bytes_per_s: float = 0.0
    """Bytes that a node copies into messages in a second: what it ships, before its optimizer's
    step. What goes to peers is copied while the link sends. 0: not counted, as on a GPU, which goes
    on meanwhile."""
    message_s: float = 0.0
    """Work of a node for each message that it sends or receives, whatever its size."""
    sums_early: bool = False
    """Whether a node adds and multiplies what has come while its last backward goes on, as it does
    where the device is virtual; else it does one thing at a time."""
    ends_s: tuple[float, ...] = ()
    """Per stage, the time from the beginning of a step to the end of the last local backward."""
    passed_s: tuple[float, ...] = ()
    """Per layer, how long before that end the backward has passed the layer."""
    busy_s: tuple[float, ...] = ()
    """Per stage, the time of a step for which its node computes, without the exchange."""
    after_s: tuple[float, ...] = ()
    """Per stage, the optimizer's step, and what its node does with the whole gradient before."""
    spare_bytes: tuple[int, ...] = ()
    """Per stage, the memory of a node that is left for factors; empty: nobody knows."""
    sources: tuple[tuple[str, str], ...] = ()
    """Name of a figure -> where it is from."""
    slow: tuple[Slow, ...] = ()
    """What is taken to be slower than all other figures say."""

    def __post_init__(self) -> None:
        if not self.shares or min(self.shares) < 1:
            raise ValueError(f"{self.shares} are no shares of pipelines")
        if self.zones and len(self.zones) != len(self.shares):
            raise ValueError(f"{len(self.zones)} zones for {len(self.shares)} pipelines")

    @property
    def pipelines(self) -> int:
        return len(self.shares)

    @property
    def stages(self) -> int:
        return len(self.cut) - 1

    @property
    def total(self) -> int:
        """Microbatches of a step."""
        return sum(self.shares) * self.microbatches

    @property
    def least_rows(self) -> float:
        """Rows of a product that take as long as to write its result: fewer take no less."""
        rates = self.flops_per_s, self.written_per_s
        return self.flops_per_s / self.written_per_s / 2 if all(rates) else 0.0

    def copied_s(self, size: float) -> float:
        """Seconds in which an owner copies so many bytes into messages to its shadow, if any."""
        rate = self.copied_bytes_per_s
        return size / rate if rate and self.replica else 0.0

    def stage_of(self, layer: int) -> int:
        """The stage that has this layer."""
        return bisect_right(self.cut, layer) - 1


def merged_partials(shares: tuple[int, ...], zones: tuple[int, ...]) -> tuple[int, ...]:
    """How many partial sums each zone has, in the order of zones, once its pipelines have added
    siblings of the tree."""
    found = []
    blocks = blocks_of(shares)
    for zone in sorted(set(zones)):
        tree: TreeSum[int] = TreeSum(sum(shares), lambda left, right: left + right)
        for block, where in zip(blocks, zones, strict=True):
            for leaf in block if where == zone else ():
                tree.push(leaf, leaf + 1, 1)
        found.append(len(tree.partials))
    return tuple(found)
