"""What the nodes of a job compute on: settles `cluster.device = "auto"`, and refuses devices that
its instance types do not have, or would leave idle.

Rule: in an account the instance types decide, and never the machine that launches. On this machine
it is the CPU unless the job says otherwise, which the configuration settles.
"""

from collections.abc import Sequence
from dataclasses import replace

from bamboo.config.catalogue import load_gpus
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.planner.prices.catalogue import Catalogue, InstanceType
from bamboo.planner.profiles.gpus import Gpu
from bamboo.topology.strategy import AUTO

CUDA, CPU = "cuda", "cpu"
LEAST_CUDA = (7, 5)
"""The compute capability from which the builds of torch have kernels: those with CUDA 13 begin at
sm_75 (pytorch#190355)."""


def gpu_of(kind: InstanceType) -> Gpu:
    """The GPU of a type, from the table. Raises InputError for one that is not in it."""
    return load_gpus().of(kind.gpu, kind.gpu_memory_gib)


def host_bytes_per_s(kind: InstanceType) -> float:
    """The rate of copies between the memory of a type's GPU and that of its host."""
    return load_gpus().host_bytes_per_s(gpu_of(kind))


def has_precision(kind: InstanceType, precision: str) -> bool:
    """Whether a type has a GPU of the table that computes in this precision."""
    table = load_gpus()
    return table.has(kind.gpu) and gpu_of(kind).tflops(precision) > 0


def on_cards(job: JobConfig) -> bool:
    """Whether the nodes of a job compute on the GPUs of rented instances, which this machine does
    not have."""
    return job.cloud.provider == "ec2" and job.cluster.device == CUDA


def with_device(job: JobConfig, catalogue: Catalogue) -> JobConfig:
    """The job with the device that its nodes compute on. Raises InputError, in one line with the
    remedy: for GPUs that would be paid and idle, for cards of two kinds, and for a card without the
    job's precision, or without a build of torch."""
    if job.cloud.provider != "ec2":
        return job
    kinds = [catalogue.find(name) for name in job.cloud.instance_types]
    if job.cluster.device == AUTO:
        found = CUDA if all(kind.gpus for kind in kinds) else CPU
        job = replace(job, cluster=replace(job.cluster, device=found))
    if job.cluster.device != CUDA:
        _refuse_idle(job, kinds)
        return job
    gpus = {gpu.name: gpu for gpu in map(gpu_of, kinds)}
    if len(gpus) > 1:
        words = " and ".join(f"{gpu.name} ({gpu.sm})" for gpu in gpus.values())
        raise InputError.at(
            file=job.file,
            key="cloud.instance_types",
            value=list(job.cloud.instance_types),
            problem=f"has cards of {len(gpus)} kinds, {words}, which compute other bits, and no "
            "tolerance can be set: after a loss one node computes again what another has sent, "
            "both must be equal, and `verify` compares every bit",
            remedy="name types of one kind of card, or launch a run for each kind",
        )
    (gpu,) = gpus.values()
    load_gpus().check_precision(gpu, job.train.precision)
    if gpu.capability < LEAST_CUDA:
        raise InputError.at(
            file=job.file,
            key="cloud.instance_types",
            value=list(job.cloud.instance_types),
            problem=f"has one {gpu.name} ({gpu.sm}), for which torch has no kernels: its builds "
            f"begin at sm_{LEAST_CUDA[0]}{LEAST_CUDA[1]}",
            remedy='take newer types, or plan and simulate with cloud.provider = "local"',
        )
    return job


def _refuse_idle(job: JobConfig, kinds: Sequence[InstanceType]) -> None:
    idle = [kind for kind in kinds if kind.gpus]
    if not idle or job.cluster.allow_idle_gpu:
        return
    raise InputError.at(
        file=job.file,
        key="cluster.device",
        value=job.cluster.device,
        problem=f"leaves the {idle[0].gpu} of a {idle[0].name} idle, and it is what you pay for",
        remedy='take "auto", or set cluster.allow_idle_gpu = true',
    )
