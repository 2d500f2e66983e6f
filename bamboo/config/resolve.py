"""A job with the defaults that depend on other keys filled in, and its semantics."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bamboo.config.tree import HF, JobConfig, LoraConfig, TrainConfig
from bamboo.errors import InputError
from bamboo.kept_weights import INIT_FOLDER
from bamboo.planner.layers.facts import LayerFacts, gpt_facts
from bamboo.topology.strategy import AUTO, Semantics
from bamboo.topology.virtual_nodes import BatchShape
from bamboo.user_code.bundle import CODE_FOLDER


def resolve(job: JobConfig) -> JobConfig:
    """Fill in the most pipelines (at least those of the start), virtual nodes (0: the smallest
    power of two >= the most pipelines), and the device of a run on this machine, which is the CPU
    unless the job names one. In an account the device follows from the instance types, so a plan
    settles it. Resolving twice changes nothing.

    A single figure for all stages stays single: a resumed run may have another number of stages.
    """
    train, cluster = job.train, job.cluster
    if cluster.max_pipelines < cluster.pipelines:
        cluster = replace(cluster, max_pipelines=cluster.pipelines)
    if train.virtual_nodes == 0 and cluster.max_pipelines >= 1:
        train = replace(train, virtual_nodes=1 << (cluster.max_pipelines - 1).bit_length())
    if cluster.device == AUTO and job.cloud.provider == "local":
        cluster = replace(cluster, device="cpu")
    return replace(job, train=train, cluster=cluster)


def kept_in(run: Path, job: JobConfig) -> JobConfig:
    """The job with the code and the weights that the run in this folder keeps of it."""
    code = str(run / CODE_FOLDER) if job.code else ""
    return replace(job, code=code, pretrained=str(run / INIT_FOLDER) if job.pretrained else "")


def nodes_at_begin(job: JobConfig) -> int:
    """The nodes with which an autoscaled run begins: its first grid, and standbys."""
    cluster = job.cluster
    return cluster.pipelines * cluster.stages + cluster.standbys


def shape_facts(job: JobConfig) -> tuple[LayerFacts, ...]:
    """The layers of the built-in GPT by its shape, before it is built; none for another model."""
    if not job.model.is_gpt:
        return ()
    return gpt_facts(
        layers=job.model.layers,
        width=job.model.width,
        context=job.model.context,
        vocabulary=job.model.vocabulary,
        microbatch=job.train.microbatch,
        dropout=job.model.dropout,
        precision=job.train.precision,
        optimizer=job.train.optimizer,
        momentum=job.train.momentum > 0,
        frozen=frozen_in(job),
        tied=job.model.tied,
        batch=job.train.batch,
    )


def frozen_in(job: JobConfig) -> tuple[str, ...]:
    """The patterns of the parameters that the job's groups freeze."""
    return tuple(group.match for group in job.train.group if group.frozen)


def batch_shape(job: JobConfig) -> BatchShape:
    """How a resolved job's batch is cut into virtual nodes and microbatches."""
    train = job.train
    return BatchShape(
        virtual_nodes=train.virtual_nodes,
        microbatches=train.batch // (train.microbatch * train.virtual_nodes),
        evaluated=eval_total(job),
    )


def eval_total(job: JobConfig) -> int:
    """How many microbatches an evaluation has; the last one may be smaller."""
    return -(-job.eval.samples // job.train.microbatch)


def semantics(
    job: JobConfig,
    *,
    data_digest: str,
    code: Mapping[str, Any] | None = None,
    numerics: Mapping[str, Any] | None = None,
) -> Semantics:
    """Everything that the losses and weights of a resolved job depend on. `code` identifies what
    the run takes along (`Manifest.identity`) by its content, not by its path. `numerics`: of a run
    of an older release alone, see `Semantics`. Raises ValueError for a job without its `code`."""
    train = job.train
    model = asdict(job.model)
    if job.model.lora == LoraConfig():
        del model["lora"]  # so that a run of a release without it keeps its hash
    if not job.model.is_traced:
        del model["split"]
    del model["requirements"], model["wheelhouse"]  # `code` has each version that was imported
    if job.brings:
        if code is None:
            raise ValueError(f"{', '.join(job.brings)} means nothing without what it names")
        model |= {"code": dict(code)}
    if job.model.is_own:
        model |= {"model": job.model.own_function}
    if job.model.is_hf:
        model |= {"model": HF}
    return Semantics(
        model=model,
        data_digest=data_digest,
        batch=train.batch,
        microbatch=train.microbatch,
        virtual_nodes=train.virtual_nodes,
        seed=train.seed,
        steps=train.steps,
        optimizer={
            "learning_rate": train.learning_rate,
            "warmup_steps": train.warmup_steps,
            "final_learning_rate": train.final_learning_rate,
            "weight_decay": train.weight_decay,
            "beta1": train.beta1,
            "beta2": train.beta2,
            "epsilon": train.epsilon,
            **_beyond_adamw(train),
        },
        precision=train.precision,
        clip_norm=train.clip_norm,
        numerics=dict(numerics or {}),
        segments=[asdict(segment) for segment in job.segments],
        init=job.weights,
    )


def _beyond_adamw(train: TrainConfig) -> dict[str, Any]:
    """Keys that came later stand in the semantics where they are not the default, so that a run of
    an older release keeps its hash. The user's own file is known by its name and its digest."""
    default = TrainConfig()
    keys = ("optimizer", "schedule", "momentum", "nesterov", "group")
    found = {x: getattr(train, x) for x in keys if getattr(train, x) != getattr(default, x)}
    for key in found.keys() & {"optimizer", "schedule"}:
        found[key] = found[key].rpartition("/")[2]
    if "group" in found:
        found["group"] = [asdict(group) for group in train.group]
    return found


def same_semantics(
    job: JobConfig, of_run: Semantics, *, data_digest: str, code: Mapping[str, Any] | None = None
) -> Semantics:
    """The semantics of a run's job with the data and the release of this machine. Raises InputError
    with what differs from those that it was trained with."""
    # The numerics of an older release are compared with the others, where somebody computes.
    here = semantics(job, data_digest=data_digest, code=code, numerics=of_run.numerics)
    if here.hash() == of_run.hash():
        return here
    ours, theirs = _flat(asdict(here)), _flat(asdict(of_run))
    differ = ", ".join(
        f"{key} is {ours.get(key)!r} here and {theirs.get(key)!r} in the run"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    )
    raise InputError(
        f"this machine cannot repeat the bits of the run: {differ}; "
        "verify where the run was trained, with its data and its release of torch"
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def nodes_of(job: JobConfig) -> int:
    """How many nodes a run keeps if the cloud has them: the largest grid, and standbys."""
    cluster = job.cluster
    return cluster.max_pipelines * cluster.stages + cluster.standbys
