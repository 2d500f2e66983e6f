"""What is trained in a simulated world, as figures: layers with their times and bytes.

Rule: every figure has a source, which is shown with every result. Another cut of a pipeline uses
the times of its layers; nothing is measured here.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add

from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.layers.partition import partition
from bamboo.planner.layers.synced import with_rows_of
from bamboo.planner.step.links import ZoneLinks
from bamboo.planner.sync.situation import Syncing
from bamboo.topology.virtual_nodes import BatchShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What a plan does to need less memory of a device. It takes time, and changes no bit."""

    recompute: bool = False
    """Activation checkpointing (Chen et al., 2016): each layer keeps its input alone from forward
    to backward, and its backward computes it again first. The last layer never does, because its
    backward follows its forward at once."""
    host_moments: bool = False
    """The moments of a replica lie in the host's memory; a step brings them to the device and
    back."""


NO_SAVING = Saving()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFigures:
    """A job as the simulator sees it. Times are those of one microbatch."""

    name: str
    source: str
    """The source of the times, such as `measured on this machine's CPU`."""
    layers: tuple[LayerFacts, ...]
    forward_s: tuple[float, ...]
    """Times per layer."""
    backward_s: tuple[float, ...]
    shape: BatchShape
    batch: int
    """Samples in a step."""
    eval_every: int = 0
    """Steps between two evaluations, of which `shape` says how long they are."""
    optimizer_s: tuple[float, ...] = ()
    """Per layer, once a step: for its owner, and again for its replica. Empty: the optimizer takes
    no time."""
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    """Rate of a link between two nodes; 0: sizes do not matter."""
    node_bytes_per_s: float = 0.0
    """Total send rate of a node; 0: only links have a rate."""
    cores: float = 0.0
    """The number of nodes that can compute at once, if all share one machine; 0: each node has its
    own processor."""
    core_share: float = 1.0
    """Share of an operation's time for which it needs the processor; the virtual device sleeps for
    the rest."""
    far: ZoneLinks | None = None
    """Links between nodes of different zones; None: the same as all others."""
    state_bytes_per_s: float = 0.0
    """Rate for copies of state, which are sent behind the training; 0: sizes do not matter."""
    store_bytes_per_s: float = 0.0
    """Rate between one node and the storage of checkpoints; 0: sizes do not matter."""
    cuts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Stages -> first layer of each stage and the layer count, if given; any other number of stages
    is balanced by time."""
    saving: Saving = NO_SAVING
    """What was done to need less memory, see `saved`."""
    host_bytes_per_s: float = 0.0
    """Rate of copies between a device's memory and the host's; 0: the device computes in the host's
    memory."""
    syncing: Syncing = field(default_factory=Syncing)
    """How gradients pass between pipelines and to shadows."""

    def __post_init__(self) -> None:
        if not len(self.layers) == len(self.forward_s) == len(self.backward_s):
            raise ValueError("a workload has one forward and one backward time for each layer")
        if len(self.optimizer_s) not in (0, len(self.layers)):
            raise ValueError("a workload has one time of the optimizer for each layer, or none")

    @property
    def back_s(self) -> tuple[float, ...]:
        """The backward per layer, with another forward where the layer is computed again."""
        if not self.saving.recompute:
            return self.backward_s
        return (*map(add, self.forward_s[:-1], self.backward_s), self.backward_s[-1])

    @property
    def both_s(self) -> tuple[float, ...]:
        """Forward plus backward, per layer."""
        return tuple(map(add, self.forward_s, self.back_s))

    @property
    def steps_s(self) -> tuple[float, ...]:
        """The optimizer's step per layer, of an owner and of a replica. A node has one of each, so
        each has half of the copies of the replica's moments, in both directions."""
        if not (self.saving.host_moments and self.host_bytes_per_s):
            return self.optimizer_s
        copies_s = (layer.moment_bytes / self.host_bytes_per_s for layer in self.layers)
        return tuple(map(add, self.optimizer_s or (0.0,) * len(self.layers), copies_s))

    @property
    def microbatch(self) -> int:
        """Samples of a microbatch."""
        return max(1, self.batch // self.shape.total)

    def copy_bytes_per_s(self, one: str, other: str) -> float:
        """Rate of a copy of state between these zones, or within one; 0: sizes do not matter."""
        rates = [self.state_bytes_per_s]
        if self.far is not None and one != other:
            rates.append(self.far.between(one, other).bytes_per_s)
        return min((rate for rate in rates if rate), default=0.0)

    def cut(self, stages: int) -> tuple[int, ...]:
        """The cut into `stages` stages. Raises InputError when there are fewer layers."""
        if stages in self.cuts:
            return self.cuts[stages]
        return partition(self.both_s, stages)

    def state_bytes(self, layers: Sequence[int] | range) -> int:
        """Bytes of parameters and moments of these layers."""
        return sum(self.layers[x].state_bytes for x in layers)

    def sums(self, figures: Sequence[float], cut: Sequence[int]) -> tuple[float, ...]:
        """The sums per stage of a figure per layer; zeros if there are no figures."""
        return tuple(sum(figures[first:stop]) for first, stop in itertools.pairwise(cut))


def saved(workload: WorkloadFigures, saving: Saving) -> WorkloadFigures:
    """The same with this saving, in place of the one that it has, and with the stash in the host's
    memory where the device has another. Where it has none, moments take as much wherever they
    lie."""
    layers, apart = workload.layers, workload.host_bytes_per_s > 0
    if workload.saving == saving and layers[0].apart == apart:
        return workload
    # The first layer's input is tokens, which are part of what it holds.
    first = min(layers[0].activation_bytes, layers[0].output_bytes)
    inputs = (first, *(layer.output_bytes for layer in layers))[: len(layers) - 1]
    given: tuple[int | None, ...] = (*inputs, None) if saving.recompute else (None,) * len(layers)
    on_host = saving.host_moments and apart
    held = (
        replace(layer, input_bytes=size, host_moments=on_host, apart=apart)
        for layer, size in zip(layers, given, strict=True)
    )
    return replace(workload, layers=tuple(held), saving=saving)


def with_microbatch(
    workload: WorkloadFigures, samples: int, *, operation_s: float = 0.0
) -> WorkloadFigures:
    """The same batch and virtual nodes, in microbatches of `samples` samples.

    Bytes of a microbatch are taken to grow with its samples, except for `cast_bytes`. So are times,
    except for `operation_s`, the part that each forward and each backward of a layer takes whatever
    its size (if it takes that long at all). The optimizer's times do not change, and no layer is
    computed again. The source says so. Raises ValueError when a virtual node is not a whole number
    of such microbatches.
    """
    slice_of = workload.batch // workload.shape.virtual_nodes
    if samples < 1 or slice_of % samples:
        raise ValueError(f"microbatches of {samples} do not make a virtual node of {slice_of}")
    now = workload.microbatch
    if samples == now:
        return workload

    def size(figure: int) -> int:
        return -(-figure * samples // now)

    def times(figures: Sequence[float]) -> tuple[float, ...]:
        fixed = [min(time_s, operation_s) for time_s in figures]
        pairs = zip(figures, fixed, strict=True)
        return tuple(least + (time_s - least) * samples / now for time_s, least in pairs)

    return replace(
        workload,
        source=f"{workload.source}, modelled in proportion to microbatches of {now}",
        layers=tuple(
            replace(
                layer,
                forward_flops=layer.forward_flops * samples / now,
                spared_flops=layer.spared_flops * samples / now,
                output_bytes=size(layer.output_bytes),
                back_bytes=None if layer.back_bytes is None else size(layer.back_bytes),
                activation_bytes=size(layer.activation_bytes - layer.cast_bytes) + layer.cast_bytes,
                synced=tuple(
                    with_rows_of(
                        one, samples=samples, before=now, microbatches=workload.shape.total
                    )
                    for one in layer.synced
                ),
            )
            for layer in workload.layers
        ),
        forward_s=times(workload.forward_s),
        backward_s=times(workload.backward_s),
        shape=replace(
            workload.shape,
            microbatches=slice_of // samples,
            evaluated=-(-workload.shape.evaluated * now // samples),
        ),
    )


def uniform_workload(
    *,
    name: str,
    source: str,
    layers: int,
    forward_s: float,
    backward_s: float,
    parameters: int,
    moment_bytes: int,
    output_bytes: int,
    shape: BatchShape,
    batch: int,
    bytes_per_s: float = 0.0,
    state_bytes_per_s: float = 0.0,
    store_bytes_per_s: float = 0.0,
) -> WorkloadFigures:
    """A model of equal layers; times, parameters and bytes are those of one."""
    layer = LayerFacts(
        name="layer",
        parameters=parameters,
        moment_bytes=moment_bytes,
        forward_flops=1.0,
        output_bytes=output_bytes,
        activation_bytes=output_bytes,
    )
    return WorkloadFigures(
        name=name,
        source=source,
        layers=(layer,) * layers,
        forward_s=(forward_s,) * layers,
        backward_s=(backward_s,) * layers,
        shape=shape,
        batch=batch,
        bytes_per_s=bytes_per_s,
        state_bytes_per_s=state_bytes_per_s,
        store_bytes_per_s=store_bytes_per_s,
    )
