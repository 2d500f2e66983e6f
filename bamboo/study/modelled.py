"""Layer times modelled for the GPU of an instance type, for plan and cost.

Rule: one function makes the workload of a job on a type, so a plan and a price list use the same
times. The work of the built-in model follows from its shape, and nothing is built. The work of a
user's own layers comes from a kept profile. Modelled times are labelled as modelled. A launch uses
them where its nodes compute on GPUs that this machine does not have.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

from bamboo import wiring
from bamboo.config.catalogue import load_catalogue, load_gpus
from bamboo.config.resolve import batch_shape, shape_facts
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.planner.layers.facts import FLOAT_BYTES, LayerFacts
from bamboo.planner.prices.catalogue import Catalogue, InstanceType
from bamboo.planner.profiles.gpus import OWN
from bamboo.planner.profiles.profiled import Profile, profiled_workload
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.ports import Note, Told
from bamboo.study.devices import gpu_of, host_bytes_per_s, on_cards, with_device
from bamboo.study.planning import cheapest_pool
from bamboo.study.profiling import kept_profile, seen_of, shaped_work
from bamboo.study.told import silent
from bamboo.study.workload import (
    MODELLED,
    Modelled,
    flow_bytes_per_s,
    sent_bytes_per_s,
    syncing_of,
    with_parameters,
)
from bamboo.wiring.begun import Begun

GIB = 2**30
COPIES = 3
"""Copies of the parameters in a look at a model: themselves, and two gradients to compare."""
PASSES = 2
"""Forwards and backwards of every layer that a look at a model does at least."""
FLOPS_PER_THREAD = 50e9
"""FLOP/s of fp32 products, assumed of any CPU thread, only to estimate minutes."""
_ON_CARDS = "Nodes compute on the GPU of their instance, so times are modelled for it."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """What decides whether a model can be looked at on this machine."""

    memory_bytes: int
    deadline_s: float


def look_at(
    job: JobConfig,
    *,
    gpu: str | None = None,
    told: Told | None = None,
    catalogue: Catalogue | None = None,
    note: Note = silent,
) -> dict[str, Any]:
    """What a plan is made from: what the preflight says of a job, or with `gpu` (a name, or OWN)
    its data, and its layers modelled for that GPU. Without `gpu` layers are modelled too where this
    machine cannot look at the built-in model, or nodes compute on GPUs that it does not have.
    `note` is told what takes a while.

    Raises InputError where no instance type of the job has that GPU, or nothing is known of the
    layers, and as `with_device` and `seen_of` do.
    """
    catalogue = catalogue or load_catalogue(job.cloud.region)
    job = with_device(job, catalogue)
    why = "" if gpu is not None else _why_modelled(job)
    if gpu is None and not why:
        return seen_of(job, told=told, note=note)
    if job.cluster.device == "virtual":
        raise InputError.at(
            file=job.file,
            key="cluster.device",
            value="virtual",
            problem="has times of its own, and --gpu models others",
            remedy="leave --gpu out, or give --set cluster.device=cpu",
        )
    kind = catalogue.find(cheapest_pool(job, catalogue)[0].instance_type)
    _check_gpu(job, kind, gpu, catalogue)
    counted = counted_work(job)
    work = on_type(kind, counted, job=job)
    seen = wiring.run_preflight(job, told=told, model=False, note=note)
    layers = [
        {
            "index": index,
            "name": layer.name,
            "parameters": layer.parameters,
            "frozen_bytes": layer.frozen_bytes,
        }
        for index, layer in enumerate(work.layers)
    ]
    return {**seen, "layers": layers, MODELLED: _as_modelled(work, kind, why)}


def seen_for_launch(
    job: JobConfig, *, begun: Begun | None = None, note: Note = silent
) -> dict[str, Any]:
    """What a launch is planned from: what the preflight says of every layer, on this machine. Where
    nodes compute on GPUs that it does not have, times are modelled for them, if the work of the
    layers is known. `note` is told what takes a while. Raises InputError as `with_device` and
    `seen_of` do."""
    catalogue = load_catalogue(job.cloud.region)
    job = with_device(job, catalogue)
    seen = seen_of(job, begun=begun, note=note)
    if not _has_modelled_times(job):
        return seen
    kind = catalogue.find(cheapest_pool(job, catalogue)[0].instance_type)
    work = on_type(kind, counted_work(job), job=job)
    work = replace(work, layers=with_parameters(work.layers, seen["layers"]))
    return {**seen, MODELLED: _as_modelled(work, kind, _ON_CARDS)}


def _as_modelled(work: WorkloadFigures, kind: InstanceType, why: str) -> Modelled:
    return Modelled(workload=work, gpu=gpu_of(kind).name, why=why)


def _has_modelled_times(job: JobConfig) -> bool:
    """Whether nodes compute on GPUs that this machine does not have, and the work of the job's
    layers is known."""
    return on_cards(job) and (job.model.is_gpt or kept_profile(job) is not None)


def counted_work(job: JobConfig) -> Profile:
    """The work of the layers, by the model's shape; for a user's own layers as a kept profile
    counted it. Raises InputError where no profile is kept."""
    if job.model.is_gpt:
        return shaped_work(job)
    profile = kept_profile(job)
    if profile is None:
        raise InputError.at(
            file=job.file,
            key="model.model",
            value=job.model.model,
            problem="has no shape that its work follows from, and no profile of it is kept",
            remedy=f"count it first: bamboo profile {job.file}",
        )
    return profile


def counted_words(profile: Profile) -> str:
    """Where the work comes from, in words."""
    return (
        "the model's shape" if profile.modelled else f"work counted on a {profile.device.upper()}"
    )


def on_type(kind: InstanceType, counted: Profile, *, job: JobConfig) -> WorkloadFigures:
    """A job on the GPU of an instance type, with the links of the instance; its cuts are left open.
    Raises InputError for a GPU without published figures."""
    profile = load_gpus().modelled(counted, gpu_of(kind), job.train.precision)
    whole = profiled_workload(profile, shape=batch_shape(job), batch=job.train.batch)
    if shaped := shape_facts(job):
        both = zip(whole.layers, shaped, strict=True)
        layers = tuple(
            replace(
                layer,
                cast_bytes=facts.cast_bytes,
                spared_flops=min(facts.spared_flops, 2 * layer.forward_flops),
                synced=facts.synced,
            )
            for layer, facts in both
        )
        whole = replace(whole, layers=layers)
    flow = flow_bytes_per_s(kind)
    return replace(
        whole,
        source=f"modelled for {profile.device} by published figures, from {counted_words(counted)}",
        bytes_per_s=flow,
        node_bytes_per_s=sent_bytes_per_s(kind),
        state_bytes_per_s=flow,
        store_bytes_per_s=sent_bytes_per_s(kind),
        host_bytes_per_s=host_bytes_per_s(kind),
        syncing=syncing_of(job, whole.layers, whole.forward_s, card=True),
    )


def _check_gpu(job: JobConfig, kind: InstanceType, gpu: str | None, catalogue: Catalogue) -> None:
    """Raise InputError where the times would be of one GPU and the price of another."""
    if gpu in (None, OWN, gpu_of(kind).name):
        return
    table = load_gpus()
    able = [
        name
        for name, one in catalogue.types.items()
        if one.gpu == gpu.partition("-")[0] and table.of(one.gpu, one.gpu_memory_gib).name == gpu
    ]
    remedy = f"give --set 'cloud.instance_types=[\"{able[0]}\"]'" if able else "leave NAME out"
    raise InputError(
        f"--gpu {gpu}: the job is planned on {kind.name}, which has one "
        f"{gpu_of(kind).name}; {remedy}"
    )


def _why_modelled(job: JobConfig, machine: _Machine | None = None) -> str:
    """Why the times of a job are modelled although no option asks for it, as a sentence; "" where
    they are measured on this machine."""
    if _has_modelled_times(job):
        return _ON_CARDS
    if not job.model.is_gpt or job.cluster.device == "virtual":
        return ""
    machine = machine or _this_machine()
    facts = shape_facts(job)
    needs = sum(COPIES * FLOAT_BYTES * x.parameters + x.frozen_bytes for x in facts)
    if needs > machine.memory_bytes:
        return (
            f"Looking at the layers would take {needs / GIB:.3g} GiB and this machine has "
            f"{machine.memory_bytes / GIB:.3g}, so their times are modelled."
        )
    takes_s = _takes_s(facts, threads=job.cluster.threads)
    if takes_s > machine.deadline_s:
        return (
            f"Looking at the layers would take this machine about {takes_s / 60:.2g} min, more "
            f"than {machine.deadline_s:g} s, so their times are modelled."
        )
    return ""


def _takes_s(facts: tuple[LayerFacts, ...], *, threads: int) -> float:
    return PASSES * sum(layer.cost for layer in facts) / (FLOPS_PER_THREAD * threads)


def _this_machine() -> _Machine:
    return _Machine(
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        deadline_s=wiring.PREFLIGHT_DEADLINE_S,
    )
