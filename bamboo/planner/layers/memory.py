"""The memory report before launch: the bytes that each stage's node will hold, by purpose.

Rule: an upper bound from the schedule and the layers' facts, state in fp32, for the busiest
pipeline. It leaves out what an allocator or a kernel adds. The runtime later reports tensor bytes
at peak, under the same names.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from bamboo.planner.layers.facts import FLOAT_BYTES, MOMENTS, LayerFacts
from bamboo.schedule.one_f_one_b import most_in_flight
from bamboo.schedule.redundancy import ahead_of_need, has_replica
from bamboo.topology.grid import Grid
from bamboo.topology.reduction import TreeSum
from bamboo.topology.strategy import stage_modes
from bamboo.topology.virtual_nodes import BatchShape, blocks

STASHED_STEPS = 2
"""Steps for which a stash is kept, at most: until the next step's reduced gradient is
acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """The most that the node of one stage holds."""

    stage: int
    parameters: int
    gradients: int
    """The gradient of the virtual node in progress."""
    moments: int
    partials: int
    """Sums of earlier virtual nodes that wait for their siblings in the tree, and the partials
    and results of the exchange between pipelines."""
    activations: int
    """Tensors that autograd holds for the microbatches in flight, and for the layer that is
    computed again."""
    stash: int
    """Outputs and input gradients of two steps."""
    replica: int
    """Parameters and moments of the next stage, and its incoming gradient; no moments where they
    lie on the host."""
    shipping: int
    """The reduced gradient on its way to the shadow."""
    ahead: int
    """Redundant forwards, held in case the next stage is lost."""

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, f.name) for f in fields(self) if f.name != "stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of some consecutive layers, in bytes."""

    parameters: int
    activations: int
    """Tensors that autograd holds for one microbatch from forward to backward."""
    again: int = 0
    """What all layers that are computed again hold beside that in their backwards."""
    most_again: int = 0
    """The largest part of `again`: one layer is in its backward at a time."""
    replica: int = 0
    """What a replica of them holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCounts:
    """How many of each tensor the node of one stage holds; with the layers these give its bytes."""

    stage: int
    waiting: int
    """Partial sums of its gradient."""
    in_flight: int
    """Microbatches that have run forward but not yet backward."""
    stashed: int
    """Tensors kept for each boundary to another stage."""
    replica: bool
    ahead: int
    """Redundant forwards of the next stage."""
    backs_ahead: bool = False
    """Whether it runs redundant backwards, too."""

    def bytes_of(self, own: Sizes, following: Sizes, *, crossing_bytes: int) -> StageBytes:
        """Defines what a node holds. It is linear in all arguments, which the exact partition
        under a memory limit relies on; so a redundant backward counts all layers of its stage.

        `following` is the next stage, cyclically; `crossing_bytes` is what one microbatch sends
        to other stages: its output, and the gradient of its input.
        """
        return StageBytes(
            stage=self.stage,
            parameters=own.parameters,
            gradients=own.parameters,
            moments=MOMENTS * own.parameters,
            partials=self.waiting * own.parameters,
            activations=self.in_flight * own.activations + own.most_again,
            stash=self.stashed * crossing_bytes,
            replica=following.replica if self.replica else 0,
            shipping=own.parameters if self.replica else 0,
            ahead=self.ahead * following.activations + self.backs_ahead * following.again,
        )


def memory_report(
    facts: Sequence[LayerFacts], *, cut: Sequence[int], grid: Grid, shape: BatchShape, mode: str
) -> tuple[StageBytes, ...]:
    """One StageBytes per stage. `cut` is a `Placement.cut`: first layers, then the layer count.

    Raises ValueError when the cut does not fit the grid and the layers.
    """
    if len(cut) != grid.stages + 1 or cut[0] != 0 or cut[-1] != len(facts):
        raise ValueError(
            f"cut {tuple(cut)} does not cut {len(facts)} layers into {grid.stages} stages"
        )
    stages = [facts[first:stop] for first, stop in itertools.pairwise(cut)]
    sizes = [sizes_of(layers) for layers in stages]
    # Bytes to the next stage: no layer comes before the first, and the last sends none.
    outputs = [0, *(layers[-1].output_bytes for layers in stages[:-1]), 0]
    return tuple(
        counts.bytes_of(
            sizes[counts.stage],
            sizes[(counts.stage + 1) % grid.stages],
            crossing_bytes=outputs[counts.stage] + outputs[counts.stage + 1],
        )
        for counts in stage_counts(grid, shape, mode)
    )


def sizes_of(layers: Sequence[LayerFacts]) -> Sizes:
    """The sizes of these layers together."""
    return Sizes(
        parameters=FLOAT_BYTES * sum(layer.parameters for layer in layers),
        activations=sum(layer.held_bytes for layer in layers),
        again=sum(layer.again_bytes for layer in layers),
        most_again=max((layer.again_bytes for layer in layers), default=0),
        replica=sum(layer.replica_bytes for layer in layers),
    )


@lru_cache(maxsize=4096)
def stage_counts(grid: Grid, shape: BatchShape, mode: str) -> tuple[StageCounts, ...]:
    """The counts of each stage, in the pipeline with the highest ones; the same for every GPU.

    Raises ValueError when there are more pipelines than virtual nodes.
    """
    held = blocks(shape.virtual_nodes, grid.pipelines)
    microbatches = max(len(block) for block in held) * shape.microbatches
    waiting = max(partials_held(block, shape.virtual_nodes) for block in held) - 1
    if grid.pipelines > 1:
        # The owner of 1/D of the parameters holds that share of every pipeline's partials.
        shares = sum(partials_at_end(block, shape.virtual_nodes) for block in held)
        waiting += -(-shares // grid.pipelines) + 1
    replica = has_replica(mode)
    modes = stage_modes(mode, grid.stages)
    held_ahead = {
        one: sum(op.kind == "FR" for op in ahead_of_need(one, stage=0, microbatches=microbatches))
        for one in set(modes)
    }
    return tuple(
        StageCounts(
            stage=stage,
            waiting=waiting,
            in_flight=most_in_flight(stage, grid.stages, microbatches),
            stashed=STASHED_STEPS * microbatches if replica else 0,
            replica=replica,
            ahead=held_ahead[following := modes[(stage + 1) % grid.stages]],
            backs_ahead=following == "full",
        )
        for stage in range(grid.stages)
    )


def partials_held(block: range, virtual_nodes: int) -> int:
    """The most sums that a pipeline holds at once while it computes its block of virtual nodes,
    the one in progress included."""
    tree: TreeSum[int] = TreeSum(virtual_nodes, lambda left, right: left + right)
    most = 0
    for leaf in block:
        most = max(most, len(tree.partials) + 1)
        tree.push(leaf, leaf + 1, 1)
    return most


def partials_at_end(block: range, virtual_nodes: int) -> int:
    """How many partial sums a pipeline hands over: the fewest subtrees that cover its block."""
    tree: TreeSum[int] = TreeSum(virtual_nodes, lambda left, right: left + right)
    for leaf in block:
        tree.push(leaf, leaf + 1, 1)
    return len(tree.partials)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What a byte of each kind adds to a node, taken from `StageCounts`, which defines it."""

    parameters: int
    activations: int
    crossing: int
    following_replica: int
    following_activations: int
    following_again: int

    @classmethod
    def of(cls, counts: StageCounts) -> "Weights":
        none = Sizes(parameters=0, activations=0)

        def total(own: Sizes = none, following: Sizes = none, crossing: int = 0) -> int:
            return counts.bytes_of(own, following, crossing_bytes=crossing).total

        return cls(
            parameters=total(replace(none, parameters=1)),
            activations=total(replace(none, activations=1)),
            crossing=total(crossing=1),
            following_replica=total(following=replace(none, replica=1)),
            following_activations=total(following=replace(none, activations=1)),
            following_again=int(counts.backs_ahead),
        )

    def alone(self, sizes: Sizes) -> int:
        """Bytes of a stage of this size, without its neighbour, and without what computing layers
        again takes."""
        return self.parameters * sizes.parameters + self.activations * sizes.activations

    def beside(self, sizes: Sizes) -> int:
        """Bytes that a next stage of this size adds."""
        return (
            self.following_replica * sizes.replica
            + self.following_activations * sizes.activations
            + self.following_again * sizes.again
        )
