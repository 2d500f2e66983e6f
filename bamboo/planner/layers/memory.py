"""The memory report before launch: the bytes that each stage's node will hold, by purpose.

Rule: an upper bound from the schedule and the layers' facts, state in fp32, for the busiest
pipeline, in the memory in which each byte lies. It leaves out what an allocator or a kernel adds.
The runtime later reports tensor bytes at peak, under the same names.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from bamboo.planner.layers.facts import FLOAT_BYTES, LayerFacts
from bamboo.schedule.one_f_one_b import most_in_flight
from bamboo.schedule.redundancy import ahead_of_need, has_replica
from bamboo.topology.grid import Grid
from bamboo.topology.reduction import TreeSum
from bamboo.topology.strategy import stage_modes
from bamboo.topology.virtual_nodes import BatchShape, blocks, evaluated_by

STASHED_STEPS = 2
"""Steps for which a stash is kept, at most: until the next step's reduced gradient is
acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """The most that the node of one stage holds, in the memory of its device but for `host`."""

    stage: int
    parameters: int
    gradients: int
    """The gradient of the virtual node in progress."""
    moments: int
    partials: int
    """Sums of earlier virtual nodes that wait for their siblings in the tree, and what the exchange
    between pipelines brings: its messages in the stash, and its sums, where they are more than
    the microbatches that are in flight before it."""
    activations: int
    """Tensors that autograd holds for the microbatches in flight, and for the layer that is
    computed again."""
    stash: int
    """Outputs and input gradients of two steps, or of one and an evaluation; none where they lie in
    the host's memory."""
    replica: int
    """Parameters and moments of the next stage, and its incoming gradient; no moments where they
    lie on the host."""
    shipping: int
    """The reduced gradient on its way to the shadow, or kept for a pipeline that may ask for it."""
    ahead: int
    """Redundant forwards, held in case the next stage is lost."""
    factors: int = 0
    """Inputs and output gradients of linear layers that go in place of gradients, of this node, of
    other pipelines, and of the next stage."""
    takeover: int = 0
    """What comes beside all this once the next stage is lost and this node computes both, until
    another node has that stage or the pipelines are formed again."""
    host: int = 0
    """What lies in the host's memory beside a GPU, after a takeover too: the stash, and moments."""

    @property
    def total(self) -> int:
        """The sum of all parts on the device: what the node needs after a takeover, where it may
        come to one."""
        return sum(getattr(self, f.name) for f in fields(self) if f.name not in ("stage", "host"))

    @property
    def calm(self) -> int:
        """The same while no neighbour is lost."""
        return self.total - self.takeover


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of some consecutive layers, in bytes."""

    parameters: int
    activations: int
    """Tensors that autograd holds for one microbatch from forward to backward."""
    moments: int = 0
    """What the optimizer keeps of them."""
    frozen: int = 0
    """Parameters that are not trained, and buffers."""
    statistics: int = 0
    """What goes with the gradients beside those of the parameters."""
    again: int = 0
    """What all layers that are computed again hold beside that in their backwards."""
    most_again: int = 0
    """The largest part of `again`: one layer is in its backward at a time."""
    replica: int = 0
    """What a replica of them holds."""
    exchanged: int = 0
    """See `StageCounts.exchanged_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widest:
    """The most that any stage of a model has, however it is cut, in bytes."""

    crossing: int = 0
    """What one microbatch sends to other stages, where it is stashed on the device."""
    again: int = 0
    """Of one layer that is computed again."""

    @classmethod
    def of(cls, facts: Sequence[LayerFacts]) -> "Widest":
        there = max((layer.stashed_bytes for layer in facts[:-1]), default=0)
        back = max((layer.stashed_back_bytes for layer in facts[:-1]), default=0)
        return cls(
            crossing=there + back,
            again=max(layer.again_bytes for layer in facts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCounts:
    """How many of each tensor the node of one stage holds; with the layers these give its bytes."""

    stage: int
    waiting: int
    """Partial sums of its gradient, beside the one in progress."""
    in_flight: int
    """Microbatches that have run forward but not yet backward."""
    stashed: int
    """Tensors kept for each boundary to another stage."""
    replica: bool
    ahead: int
    """Redundant forwards of the next stage."""
    backs_ahead: bool = False
    """Whether it runs redundant backwards, too."""
    taken_in_flight: int = 0
    """Microbatches in flight of the next stage after a takeover, beside the redundant forwards."""
    exchanged: int = 0
    """Sums that come with the exchange between pipelines, once no microbatch is in flight."""
    resendable: int = 0
    """Sums of an exchange that lie in the stash during the next step."""
    keeps: bool = False
    """Whether its reduced gradient is kept during the next step: there are other pipelines."""
    protects: bool = False
    """Whether, after a takeover, it gets a replica of the stage beyond, and another node one of the
    stage that it took over: with three stages or more."""

    def own(self, layers: Sequence[LayerFacts]) -> Sizes:
        """The sizes of its own stage, if it has these layers."""
        return replace(
            sizes_of(layers),
            exchanged=self.exchanged_bytes(layers),
            most_again=max(map(self.again_bytes, layers), default=0),
        )

    def exchanged_bytes(self, layers: Sequence[LayerFacts]) -> int:
        """What the exchange between pipelines adds to the microbatches of these layers in flight.
        None of them is in flight any more when its sums come. For the sake of the partition, each
        layer counts what it has more of."""
        return sum(
            self._exchanged(layer, beyond=self.in_flight * layer.held_bytes) for layer in layers
        )

    def again_bytes(self, layer: LayerFacts) -> int:
        """What a layer that is computed again adds: sums of the exchange leave room for it."""
        sums = self.exchanged * layer.gradient_bytes
        spare = max(0, sums - self.in_flight * layer.held_bytes)
        return max(0, layer.again_bytes - spare)

    def _exchanged(self, layer: LayerFacts, *, beyond: int) -> int:
        sums = layer.gradient_bytes
        stashed = 0 if layer.apart else self.resendable * sums
        return stashed + max(0, self.exchanged * sums - beyond)

    def taken_bytes(self, layers: Sequence[LayerFacts]) -> int:
        """What a takeover brings, by the layers of the next stage: sums of their gradient, and
        beside them microbatches in flight or, once there are none, the sums of the exchange; their
        reduced gradient, on its way to a new shadow or kept; and the replica of the stage beyond,
        for which nothing is computed ahead then. The stage beyond is taken to be as large as this
        one. So this is room too for the replica of the stage beyond where the next one is not lost:
        a node has both while its neighbour computes both stages."""
        if not self.replica:
            return 0
        total = 0
        for layer in layers:
            sums, held = layer.gradient_bytes, layer.held_bytes
            total += (self.waiting + (self.protects or self.keeps)) * sums
            total += self.protects * layer.replica_bytes + self.taken_in_flight * held
            total += self._exchanged(layer, beyond=(self.ahead + self.taken_in_flight) * held)
        return total

    def bytes_of(
        self,
        own: Sizes,
        following: Sizes,
        *,
        crossing_bytes: int,
        taken_bytes: int = 0,
        widest: Widest | None = None,
    ) -> StageBytes:
        """Defines what a node holds. It is linear in the sizes, which the exact partition under a
        memory limit relies on; so a redundant backward counts all layers of its stage, and what a
        takeover brings in messages and in layers computed again is taken from the `widest` stage.

        `following` is the next stage, cyclically; `crossing_bytes` is what one microbatch sends
        to other stages, where it is stashed on the device: its output, and the gradient of its
        input.

        A takeover makes an owner of a replica. Its parameters and moments stay where they are, and
        a gradient in progress takes the place of the one that came in. New are its
        `taken_bytes`, and messages.
        """
        gradients = own.parameters + own.statistics
        widest = widest or Widest(again=own.most_again)
        takeover = 0
        if self.replica:
            takeover = (
                taken_bytes
                + self.stashed * widest.crossing
                + (0 if self.backs_ahead else widest.again - own.most_again)
            )
        return StageBytes(
            stage=self.stage,
            parameters=own.parameters + own.frozen,
            gradients=gradients,
            moments=own.moments,
            partials=self.waiting * gradients + own.exchanged,
            activations=self.in_flight * own.activations + own.most_again,
            stash=self.stashed * crossing_bytes,
            replica=following.replica if self.replica else 0,
            shipping=gradients if self.replica or self.keeps else 0,
            ahead=self.ahead * following.activations + self.backs_ahead * following.again,
            takeover=takeover,
        )


def memory_report(
    facts: Sequence[LayerFacts],
    *,
    cut: Sequence[int],
    grid: Grid,
    shape: BatchShape,
    mode: str,
    factors: Sequence[int] = (),
) -> tuple[StageBytes, ...]:
    """One StageBytes per stage. `cut` is a `Placement.cut`: first layers, then the layer count.
    `factors`: bytes of each stage's factors, if any (`sync.resolved.held_factors`).

    Raises ValueError when the cut does not fit the grid and the layers.
    """
    if len(cut) != grid.stages + 1 or cut[0] != 0 or cut[-1] != len(facts):
        raise ValueError(
            f"cut {tuple(cut)} does not cut {len(facts)} layers into {grid.stages} stages"
        )
    stages = [facts[first:stop] for first, stop in itertools.pairwise(cut)]
    # Bytes to the other stages: no stage comes before the first, and none after the last.
    outputs = [*(layers[-1].output_bytes for layers in stages[:-1]), 0]
    returned = [0, *(layers[-1].returned_bytes for layers in stages[:-1])]
    crossing = [there + back for there, back in zip(outputs, returned, strict=True)]
    apart, widest = facts[0].apart, Widest.of(facts)
    found = []
    for counts in stage_counts(grid, shape, mode):
        stage, following = counts.stage, (counts.stage + 1) % grid.stages
        held = counts.bytes_of(
            counts.own(stages[stage]),
            sizes_of(stages[following]),
            crossing_bytes=0 if apart else crossing[stage],
            taken_bytes=counts.taken_bytes(stages[following]),
            widest=widest,
        )
        if apart and counts.replica:
            replicas = 1 + counts.protects
            moved = replicas * sum(layer.moved_bytes for layer in stages[following])
            kept = counts.stashed * (crossing[stage] + crossing[following])
            held = replace(held, host=kept + moved)
        found.append(replace(held, factors=factors[stage]) if factors else held)
    return tuple(found)


def sizes_of(layers: Sequence[LayerFacts]) -> Sizes:
    """The sizes of these layers together."""
    return Sizes(
        parameters=FLOAT_BYTES * sum(layer.parameters for layer in layers),
        activations=sum(layer.held_bytes for layer in layers),
        moments=sum(layer.moment_bytes for layer in layers),
        frozen=sum(layer.frozen_bytes for layer in layers),
        statistics=FLOAT_BYTES * sum(layer.statistics for layer in layers),
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
    virtual_nodes, total = shape.virtual_nodes, shape.evaluated
    evaluated = max(len(evaluated_by(block, virtual_nodes, total)) for block in held)
    # An evaluation begins once no more than one step is kept, and all of it is kept to its end.
    most_kept = max(STASHED_STEPS * microbatches, microbatches + evaluated)
    waiting = max(partials_held(block, shape.virtual_nodes) for block in held) - 1
    exchanged = resendable = 0
    if grid.pipelines > 1:
        # The owner of 1/D of the parameters holds that share of every pipeline's partials, and then
        # their sum. It keeps what it has sent: the rest of its own partials, and that share's sum.
        at_end = [partials_at_end(block, shape.virtual_nodes) for block in held]
        exchanged = -(-sum(at_end) // grid.pipelines) + 1
        resendable = -(-(max(at_end) * (grid.pipelines - 1) + 1) // grid.pipelines)
    replica = has_replica(mode)
    modes = stage_modes(mode, grid.stages)
    held_ahead = {
        one: sum(op.kind == "FR" for op in ahead_of_need(one, stage=0, microbatches=microbatches))
        for one in set(modes)
    }
    in_flight = [most_in_flight(stage, grid.stages, microbatches) for stage in range(grid.stages)]
    return tuple(
        StageCounts(
            stage=stage,
            waiting=waiting,
            in_flight=in_flight[stage],
            stashed=most_kept if replica else evaluated,
            replica=replica,
            ahead=(ahead := held_ahead[modes[following := (stage + 1) % grid.stages]]),
            backs_ahead=modes[following] == "full",
            # What was computed ahead is in flight already, and more than that never is.
            taken_in_flight=max(0, in_flight[following] - ahead) if replica else 0,
            exchanged=exchanged,
            resendable=resendable,
            keeps=grid.pipelines > 1,
            protects=replica and grid.stages > 2,
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

    counts: StageCounts
    parameters: int
    moments: int
    """Also of what is frozen, which is held once too."""
    statistics: int
    activations: int
    crossing: int
    following_replica: int
    following_activations: int
    following_again: int
    widest_crossing: int
    widest_again: bool
    """Whether the largest layer of the model that is computed again counts, not of the stage."""

    @classmethod
    def of(cls, counts: StageCounts) -> "Weights":
        none = Sizes(parameters=0, activations=0)

        def total(
            own: Sizes = none,
            following: Sizes = none,
            crossing: int = 0,
            widest: Widest | None = None,
        ) -> int:
            held = counts.bytes_of(own, following, crossing_bytes=crossing, widest=widest)
            return held.total

        return cls(
            counts=counts,
            parameters=total(replace(none, parameters=1)),
            moments=total(replace(none, moments=1)),
            statistics=total(replace(none, statistics=1)),
            activations=total(replace(none, activations=1)),
            crossing=total(crossing=1),
            following_replica=total(following=replace(none, replica=1)),
            following_activations=total(following=replace(none, activations=1)),
            following_again=int(counts.backs_ahead),
            widest_crossing=total(widest=Widest(crossing=1)),
            widest_again=bool(total(widest=Widest(again=1))),
        )

    def alone(self, layers: Sequence[LayerFacts]) -> int:
        """Bytes of a stage of these layers, without its neighbour, and without what computing
        layers again takes."""
        sizes = sizes_of(layers)
        return (
            self.parameters * sizes.parameters
            + self.moments * (sizes.moments + sizes.frozen)
            + self.statistics * sizes.statistics
            + self.activations * sizes.activations
            + self.counts.exchanged_bytes(layers)
        )

    def beside(self, layers: Sequence[LayerFacts]) -> int:
        """Bytes that a next stage of these layers adds."""
        sizes = sizes_of(layers)
        return (
            self.counts.taken_bytes(layers)
            + self.following_replica * sizes.replica
            + self.following_activations * sizes.activations
            + self.following_again * sizes.again
        )
