"""The memory report before launch: what each stage's node will hold, by purpose, in bytes.

Rule: an upper bound from the schedule and the layers' facts, in fp32, for the busiest pipeline.
What an allocator or a kernel takes on top is not in it; the runtime reports tensor bytes at peak
afterwards, under the same names.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields

from bamboo.planner.profile import FLOAT_BYTES, LayerFacts
from bamboo.schedule.redundancy import ahead_of_need, has_replica
from bamboo.topology.grid import Grid
from bamboo.topology.reduction import TreeSum
from bamboo.topology.virtual_nodes import BatchShape, blocks

STASHED_STEPS = 2
"""A stash is kept until the next step's reduced gradient is acknowledged: two steps at most."""
MOMENTS = 2
"""AdamW: first and second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """What the node of one stage holds at most."""

    stage: int
    parameters: int
    gradients: int
    """Of the virtual node in progress."""
    moments: int
    partials: int
    """Sums of earlier virtual nodes that wait for their siblings in the tree, and the partials
    and results of the exchange between pipelines."""
    activations: int
    """Held by autograd for the microbatches in flight."""
    stash: int
    """Outputs and input gradients, of two steps."""
    replica: int
    """Parameters and moments of the next stage, and its gradient as it comes."""
    shipping: int
    """The reduced gradient on its way to the shadow."""
    ahead: int
    """Redundant forwards that are held in case the next stage is lost."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, f.name) for f in fields(self) if f.name != "stage")


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
    of_stage = [facts[first:stop] for first, stop in itertools.pairwise(cut)]
    held = blocks(shape.virtual_nodes, grid.pipelines)
    microbatches = max(len(block) for block in held) * shape.microbatches
    waiting = max(partials_held(block, shape.virtual_nodes) for block in held) - 1
    if grid.pipelines > 1:
        # An owner of 1/D of the parameters holds that share of every pipeline's partials.
        shares = sum(partials_at_end(block, shape.virtual_nodes) for block in held)
        waiting += -(-shares // grid.pipelines) + 1
    return tuple(
        _stage(stage, of_stage, microbatches=microbatches, waiting=waiting, mode=mode)
        for stage in range(grid.stages)
    )


def partials_held(block: range, virtual_nodes: int) -> int:
    """The most sums a pipeline holds at once while it computes its block of virtual nodes, the
    one in progress included."""
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


def _stage(
    stage: int,
    of_stage: Sequence[Sequence[LayerFacts]],
    *,
    microbatches: int,
    waiting: int,
    mode: str,
) -> StageBytes:
    stages = len(of_stage)
    own, following = of_stage[stage], of_stage[(stage + 1) % stages]
    own_bytes, following_bytes = _parameter_bytes(own), _parameter_bytes(following)
    replica = has_replica(mode)
    stash = 0
    if replica:
        crossing = own[-1].output_bytes if stage < stages - 1 else 0
        crossing += of_stage[stage - 1][-1].output_bytes if stage > 0 else 0
        stash = STASHED_STEPS * microbatches * crossing
    ahead = ahead_of_need(mode, stage=(stage + 1) % stages, microbatches=microbatches)
    forwards_ahead = sum(instruction.kind == "FR" for instruction in ahead)
    return StageBytes(
        stage=stage,
        parameters=own_bytes,
        gradients=own_bytes,
        moments=MOMENTS * own_bytes,
        partials=waiting * own_bytes,
        activations=min(stages - stage, microbatches) * _activation_bytes(own),
        stash=stash,
        replica=(1 + MOMENTS + 1) * following_bytes if replica else 0,
        shipping=own_bytes if replica else 0,
        ahead=forwards_ahead * _activation_bytes(following),
    )


def _parameter_bytes(layers: Sequence[LayerFacts]) -> int:
    return FLOAT_BYTES * sum(layer.parameters for layer in layers)


def _activation_bytes(layers: Sequence[LayerFacts]) -> int:
    return sum(layer.activation_bytes for layer in layers)
