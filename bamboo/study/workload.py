"""From a job and what the preflight saw of its layers to figures: facts, times, grids.

Rule: the time of a stage is the sum of its layers' times, however the model is cut. On a virtual
device a layer has an equal part of the time that its stage of the planned cut was given, and the
optimizer takes no time: the device sleeps only for forwards and backwards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from bamboo.config.resolve import batch_shape, semantics, shape_facts
from bamboo.config.tree import JobConfig
from bamboo.core.state import GridTime
from bamboo.planner.layers.facts import BOUNDARY_BYTES, LayerFacts
from bamboo.planner.layers.memory import memory_report
from bamboo.planner.layers.partition import partition
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.prices.catalogue import InstanceType
from bamboo.planner.profiles.workload import Saving, WorkloadFigures, saved
from bamboo.planner.step.step_time import StepTimes
from bamboo.planner.sync.situation import Syncing
from bamboo.study.devices import host_bytes_per_s
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.strategy import Semantics
from bamboo.user_code.manifest import Manifest

OWN_CORES = ", with a core for every node"
PROFILED = "profiled"
"""Key in what was seen of a job: its times come from a profile, named by the value."""
ADDED_PER_S = 1.3e9
"""Numbers that a CPU adds in a second: 1.32 billion of two cores (`benchmarks.break_even_k`)."""
WRITTEN_PER_S = 2e9
"""Numbers that a CPU writes in a second: 2.2 to 2.6 billion of products of 4 to 32 rows, and 1.6
billion that are put together and squared, of one of two cores."""
ADDED_ON_CARD_PER_S = 2e10
"""Likewise on a GPU, of some hundred GB/s."""
FLOW_GBPS = 5.0
"""The most that one connection between two instances carries outside a placement group (AWS)."""
COPIED_BYTES_PER_S = 1.3e9
"""Bytes that a CPU copies into messages in a second: 12.7 MB take 7.3 ms of one of two cores, and
the optimizer's step is 2 ms slower while they leave."""
MESSAGE_S = 2e-4
"""Work of a node for a message, whatever its size."""
SEEN = 0.02
"""Share of a step's operations on the virtual device, whose figures are given, from which on an
optimizer counts, which takes what it takes here: less is not worth a plan that differs each
time."""
ASSUMED = "assumed"
MODELLED = "modelled"
"""Key in what was seen of a job: a Modelled, where no layer was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelled:
    """A job on a GPU that this machine does not have."""

    workload: WorkloadFigures
    """Its cuts are left open."""
    gpu: str
    why: str
    """One sentence; empty where an option asked for it."""


def code_of(seen: Mapping[str, Any]) -> Manifest | None:
    """The part of the user's code that is kept with a run; None: the model is built in."""
    return Manifest.from_dict(seen["code"]) if seen.get("code") else None


def semantics_of(job: JobConfig, seen: Mapping[str, Any]) -> Semantics:
    """The semantics of a resolved job, with the data and the code that were seen."""
    code = code_of(seen)
    # A plan for a GPU does not look at the user's model, so its strategy cannot launch that model.
    identity = {"left alone": True} if code is None else code.identity()
    return semantics(job, data_digest=seen["data_digest"], code=identity)


def layer_facts(job: JobConfig, seen: Mapping[str, Any]) -> tuple[LayerFacts, ...]:
    """Bytes as the preflight saw them; the built-in GPT's flops and casts by its shape. Where the
    layers were modelled, all figures are the model's.

    The flops of a user's layers are unknown. Their measured time stands for it, since the cut
    depends only on the shares between layers.
    """
    if MODELLED in seen:
        modelled: Modelled = seen[MODELLED]
        return modelled.workload.layers
    layers: Sequence[Mapping[str, Any]] = seen["layers"]
    if shaped := shape_facts(job):
        flops = [facts.forward_flops for facts in shaped]
        casts = [facts.cast_bytes for facts in shaped]
        spared = [facts.spared_flops for facts in shaped]
    else:
        flops = [(layer["forward_ms"] + layer["backward_ms"]) / 3 for layer in layers]
        casts = [0] * len(layers)
        spared = [0.0] * len(layers)
    found = tuple(
        LayerFacts(
            name=str(layer["name"]),
            parameters=int(layer["parameters"]),
            moment_bytes=int(layer["moment_bytes"]),
            forward_flops=float(flop),
            output_bytes=int(layer["output_bytes"]),
            back_bytes=layer.get("back_bytes"),
            activation_bytes=int(layer["activation_bytes"]),
            cast_bytes=cast,
            frozen_bytes=int(layer.get("frozen_bytes", 0)),
            statistics=int(layer.get("statistics", 0)),
            spared_flops=less,
        )
        for layer, flop, cast, less in zip(layers, flops, casts, spared, strict=True)
    )
    if shaped:
        pairs = zip(found, shaped, strict=True)
        found = tuple(replace(layer, synced=facts.synced) for layer, facts in pairs)
    return with_parameters(found, layers)


def with_parameters(
    found: Sequence[LayerFacts], layers: Sequence[Mapping[str, Any]]
) -> tuple[LayerFacts, ...]:
    """The facts of layers, with those of their parameters as the preflight saw them, if it has."""
    seen = {
        layer["index"]: tuple(
            ParameterFacts(**{**one, "shape": tuple(one["shape"])}) for one in layer["synced"]
        )
        for layer in layers
        if "synced" in layer
    }
    return tuple(
        replace(facts, synced=seen.get(index, facts.synced)) for index, facts in enumerate(found)
    )


def costs_of(facts: Sequence[LayerFacts], seen: Mapping[str, Any]) -> list[float]:
    """What stages are balanced by: times from a profile, or else flops. The preflight's own times
    come from a few passes, and a cut should not follow their noise."""
    if PROFILED in seen:
        return [float(layer["forward_ms"] + layer["backward_ms"]) for layer in seen["layers"]]
    return [layer.cost for layer in facts]


def cuts_of(
    facts: Sequence[LayerFacts],
    cut: tuple[int, ...],
    *,
    costs: Sequence[float],
    job: JobConfig,
    kind: InstanceType,
) -> tuple[tuple[int, ...], ...]:
    """The planned cut, and one into each smaller number of stages that an instance has memory for.
    A run with too few nodes may use those."""
    shorter = (partition(costs, stages) for stages in range(2, len(cut) - 1))
    memory = kind.gpu_memory_bytes
    return (*(one for one in shorter if most_bytes(facts, one, 1, job=job) <= memory), cut)


def cuts_by_flops(
    job: JobConfig, layers: Sequence[LayerFacts], most_stages: int
) -> dict[int, tuple[int, ...]]:
    """The job's own cut, and all others balanced by flops, which are the same for any GPU."""
    costs = [layer.cost for layer in layers]
    cuts = {
        stages: partition(costs, stages) for stages in range(1, min(most_stages, len(layers)) + 1)
    }
    if job.cluster.cut:
        cuts[job.cluster.stages] = (*job.cluster.cut, len(layers))
    return cuts


def most_bytes(
    facts: Sequence[LayerFacts], cut: tuple[int, ...], pipelines: int, *, job: JobConfig
) -> int:
    """Bytes of the node that needs most, where so many pipelines have this cut."""
    report = memory_report(
        facts,
        cut=cut,
        grid=Grid(pipelines=pipelines, stages=len(cut) - 1),
        shape=batch_shape(job),
        mode=job.cluster.redundancy,
    )
    return max(stage.total for stage in report)


def workload_of(
    job: JobConfig,
    seen: Mapping[str, Any],
    *,
    cuts: Sequence[tuple[int, ...]],
    kind: InstanceType,
) -> WorkloadFigures:
    """The layers of a job with their times, and with what the job says that saves memory. The
    planned cut is the last of `cuts`."""
    by_stages = {len(cut) - 1: cut for cut in cuts}
    cluster, layers = job.cluster, seen["layers"]
    saving = Saving(recompute=cluster.recomputes, host_moments=cluster.moments_on_host)
    if MODELLED in seen:
        modelled: Modelled = seen[MODELLED]
        work = replace(modelled.workload, cuts=by_stages, eval_every=job.eval.every_steps)
        return saved(work, saving)
    link_bytes_per_s, node_bytes_per_s = _rates(job, kind)
    network_bytes_per_s = sent_bytes_per_s(kind)
    if cluster.device == "virtual":
        source = "given: the virtual device's figures"
        forward_s = by_layer(cluster.virtual_forward_ms, cuts[-1])
        backward_s = by_layer(cluster.virtual_backward_ms, cuts[-1])
    else:
        source = f"{_measured_here(job)}{seen.get(PROFILED, '')}{OWN_CORES}"
        forward_s = tuple(float(layer["forward_ms"]) / 1e3 for layer in layers)
        backward_s = tuple(float(layer["backward_ms"]) / 1e3 for layer in layers)
    optimizer_s = tuple(float(layer["optimizer_ms"]) / 1e3 for layer in layers)
    if cluster.device == "virtual":
        operations_s = batch_shape(job).total / cluster.pipelines * sum((*forward_s, *backward_s))
        if sum(optimizer_s) < SEEN * operations_s:
            optimizer_s = ()
    facts = layer_facts(job, seen)
    measured_s = [float(layer["forward_ms"]) / 1e3 for layer in layers]
    found = WorkloadFigures(
        name=Path(job.file).name,
        source=source,
        layers=facts,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        shape=batch_shape(job),
        batch=job.train.batch,
        latency_s=cluster.virtual_link_latency_ms / 1e3 if cluster.device == "virtual" else 0.0,
        bytes_per_s=link_bytes_per_s,
        node_bytes_per_s=node_bytes_per_s,
        state_bytes_per_s=link_bytes_per_s or network_bytes_per_s,
        store_bytes_per_s=network_bytes_per_s,
        host_bytes_per_s=host_bytes_per_s(kind) if cluster.device == "cuda" else 0.0,
        cuts=by_stages,
        eval_every=job.eval.every_steps,
        syncing=syncing_of(job, facts, measured_s, card=cluster.device == "cuda"),
    )
    return saved(found, saving)


def _rates(job: JobConfig, kind: InstanceType) -> tuple[float, float]:
    """Bytes a second of one link between two nodes, and of all that a node sends; 0: not limited.
    Within one machine links have no rate, but for those of the virtual device."""
    if job.cluster.device == "virtual":
        return job.cluster.virtual_link_gbps * 1e9 / 8, 0.0
    if job.cloud.provider == "local":
        return 0.0, 0.0
    return flow_bytes_per_s(kind), sent_bytes_per_s(kind)


def flow_bytes_per_s(kind: InstanceType) -> float:
    """What one connection between two instances carries."""
    return min(kind.network_gbps, FLOW_GBPS) * 1e9 / 8


def sent_bytes_per_s(kind: InstanceType) -> float:
    """What an instance can send in total."""
    return kind.network_gbps * 1e9 / 8


def syncing_of(
    job: JobConfig, layers: Sequence[LayerFacts], forward_s: Sequence[float], *, card: bool
) -> Syncing:
    """The rates of nodes that count where gradients are synchronised, for layers with these times
    of a forward, on a CPU or a GPU. That of products is what the job's own linear layers reach; the
    others are assumed, and say so. A builder makes a strategy for each grid; one of the user's
    is asked for the grid of a plan alone, and all goes by `tree` until then."""
    flops_per_s = product_rate(layers, forward_s)
    return Syncing(
        sync=job.cluster.sync if job.cluster.own_builder is None else "tree",
        flops_per_s=flops_per_s,
        added_per_s=ADDED_ON_CARD_PER_S if card else ADDED_PER_S,
        written_per_s=0.0 if card else WRITTEN_PER_S,
        copied_bytes_per_s=0.0 if card else COPIED_BYTES_PER_S,
        message_s=MESSAGE_S,
        factor_bytes=BOUNDARY_BYTES[job.train.precision],
        sums_early=job.cluster.device == "virtual",
        sources=(
            ("flops_per_s", "of the job's own linear layers" if flops_per_s else "unknown"),
            ("added_per_s", ASSUMED),
            ("written_per_s", ASSUMED),
            ("copied_bytes_per_s", ASSUMED),
            ("message_s", ASSUMED),
        ),
    )


def product_rate(layers: Sequence[LayerFacts], forward_s: Sequence[float]) -> float:
    """The most flops per second that any layer's own linear layers reach in a forward; 0: none has
    any, or no time."""
    rates = [
        2.0 * sum(one.rows_k * one.size for one in layer.synced) / seconds
        for layer, seconds in zip(layers, forward_s, strict=True)
        if seconds > 0
    ]
    return max(rates, default=0.0)


def _measured_here(job: JobConfig) -> str:
    """Where the times are from that the preflight, or a profile, has measured."""
    if job.cluster.device != "cuda":
        return "measured on this machine's CPU"
    if job.cloud.provider == "local":
        return "measured on this machine's GPU"
    return (
        "measured on this machine's CPU and not on the GPU that nodes compute on, which "
        "`bamboo profile JOB` would model"
    )


def on_cores(
    workload: WorkloadFigures, job: JobConfig, seen: Mapping[str, Any], *, nodes: int
) -> WorkloadFigures:
    """Count the cores of this machine where the nodes are processes that share them. The run still
    decides as if each node had its own core. A virtual device needs a core while it computes, and
    sleeps for the rest of its time; but sums and the optimizer's step take what they take, and all
    nodes come to them at the same time, because they wait for each other."""
    cores = seen.get("cores", 0) / job.cluster.threads
    if job.cloud.provider != "local" or MODELLED in seen or not 0 < cores < nodes:
        return workload
    share, whose = 1.0, ""
    if job.cluster.device == "virtual":
        computed_s = sum(x["forward_ms"] + x["backward_ms"] for x in seen["layers"]) / 1e3
        share, whose = min(1.0, computed_s / sum(workload.both_s)), "what it computes on "
        workload = _at_once(workload, nodes / cores)
    source = workload.source.removesuffix(OWN_CORES)
    source += f", {whose}{cores:.3g} cores that {nodes} nodes share"
    return replace(workload, source=source, cores=cores, core_share=share)


def _at_once(workload: WorkloadFigures, nodes: float) -> WorkloadFigures:
    """The same where so many nodes to a core exchange and step at once."""
    syncing = workload.syncing
    return replace(
        workload,
        optimizer_s=tuple(nodes * time_s for time_s in workload.optimizer_s),
        syncing=replace(
            syncing,
            flops_per_s=syncing.flops_per_s / nodes,
            added_per_s=syncing.added_per_s / nodes,
            written_per_s=syncing.written_per_s / nodes,
            copied_bytes_per_s=syncing.copied_bytes_per_s / nodes,
            message_s=syncing.message_s * nodes,
        ),
    )


def grids_of(
    workload: WorkloadFigures,
    *,
    mode: str,
    cuts: Sequence[tuple[int, ...]],
    pipelines: int,
    fits: Callable[[int, tuple[int, ...]], bool] = lambda pipelines, cut: True,
) -> tuple[GridTime, ...]:
    """Every grid that a run may have, with the time of a calm step. `fits` says whether instances
    have the memory for so many pipelines of a cut."""
    times = StepTimes(workload, mode)
    leaves = workload.shape.virtual_nodes
    return tuple(
        GridTime(
            pipelines=several,
            stages=len(cut) - 1,
            step_s=times.calm_s(
                Grid(pipelines=several, stages=len(cut) - 1), equal_shares(leaves, several)
            ),
        )
        for several in range(1, min(pipelines, leaves) + 1)
        for cut in cuts
        if fits(several, cut)
    )


def by_layer(figures_ms: Sequence[float], cut: Sequence[int]) -> tuple[float, ...]:
    """Seconds of each layer, from one figure for all stages of a cut or one for each."""
    stages = len(cut) - 1
    figures = tuple(figures_ms) * (stages if len(figures_ms) == 1 else 1)
    return tuple(
        figure / 1e3 / (stop - first)
        for figure, (first, stop) in zip(figures, pairwise(cut), strict=True)
        for _ in range(first, stop)
    )
