"""What a worker prepares before it joins: the run's documents, data and model, its own speed."""

import contextlib
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from bamboo.checkpoint.along import fetch_code, fetch_wheels
from bamboo.checkpoint.initial import far_layers, load_layers
from bamboo.checkpoint.open import OpenObjects, open_objects
from bamboo.checkpoint.run_files import fetch_data
from bamboo.checkpoint.shared_data import far_tokens
from bamboo.config.load import job_from_json
from bamboo.config.tree import JobConfig
from bamboo.coord.driver import Driver
from bamboo.core.events import Attested, FaultScope
from bamboo.core.numerics import facts_of
from bamboo.data.dataset import Found, check_digest, load_data
from bamboo.data.evaluation import check_eval_digest, load_eval
from bamboo.errors import InputError, StoreUnavailable
from bamboo.far_weights import FarWeights
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.kept_weights import INIT_FOLDER
from bamboo.models import (
    Tensors,
    as_leaves,
    build_layer,
    build_model,
    named_parameters,
    run_back,
    run_layers,
    unpacked,
)
from bamboo.models.build import USER_ERRORS
from bamboo.planner.layers.facts import FLOAT_BYTES, LayerFacts
from bamboo.planner.layers.memory import memory_report
from bamboo.ports import ObjectStore, Store
from bamboo.runtime.device.devices import device_of
from bamboo.runtime.node.faults import scope_of
from bamboo.runtime.step.norm import CLIP_FACTOR, end_step
from bamboo.runtime.step.numerics import local_numerics, prepare
from bamboo.runtime.step.slots import Initial, SlotBuilder
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Strategy
from bamboo.user_code.bundle import CODE_FOLDER, check_identity
from bamboo.user_code.wheels import WHEELS_FOLDER, install_wheels, use_installed

RETRY_S = 0.1
JOIN_DEADLINE_S = 300.0
"""How long the store may be away or stand still, or may have lost the run, while a node is about to
join."""
COPIES = 3
"""Extra copies of a stage's gradient that the memory report does not count: as it is sent, as it is
received, and clipped."""


def write_aside_in(folder: str) -> None:
    """Put all temporary files of this process there from now on; "": where TMPDIR points to."""
    if folder:
        tempfile.tempdir = folder
        with contextlib.suppress(OSError):  # a full disk, for example: training needs no such file
            Path(folder).mkdir(parents=True, exist_ok=True)


def documents_of(store: Store, *, deadline_s: float) -> Mapping[str, str]:
    """The documents that the run was created with, however often the store is away or empty before
    they are read. Raises StoreUnavailable at the deadline."""
    give_up_s = time.monotonic() + deadline_s
    while True:
        try:
            found = store.documents()
            if found:
                return found
            raise StoreUnavailable("the store has lost the run, and nobody gave it back in time")
        except StoreUnavailable:
            if time.monotonic() >= give_up_s:
                raise
            time.sleep(RETRY_S)


def objects_of(url: str, bucket: OpenObjects | None) -> ObjectStore | None:
    """The run's files in a bucket; None when this machine has the run's folder, or needs none."""
    return open_objects(url, bucket=bucket) if url else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What the launcher stored for its nodes; None for what is not, or no longer, there: this
    machine's own is then checked against its digest."""

    data: Found | None = None
    evaluated: Found | None = None
    """The same of the evaluations."""
    code: Path | None = None
    """A folder with the code of the run."""
    weights: FarWeights | None = None
    """Those that the run begins with."""

    def of(self, job: JobConfig) -> JobConfig:
        """The job that is trained here, with the code of this machine."""
        return job if self.code is None else replace(job, code=str(self.code), pretrained="")


def brought_for(
    documents: Mapping[str, str], objects: ObjectStore, bucket: OpenObjects | None
) -> Brought:
    """Data, code and wheels of a run, in a folder of this process alone; its wheels are installed.
    `bucket` opens the place of its tokens. Raises InputError for what is not the run's, or cannot
    be installed, StorageUnavailable."""
    semantics = Strategy.from_json(documents["strategy"]).semantics
    job = job_from_json(documents["job"])
    folder = Path(tempfile.gettempdir()) / f"bamboo-brought-{uuid.uuid4().hex}"
    folder.mkdir(mode=0o700)

    def found(digest: str, name: str) -> Found | None:
        far = far_tokens(objects, digest, folder / name, bucket=bucket)
        return far or fetch_data(objects, digest)

    code = folder / CODE_FOLDER if job.code else None
    if job.wheels:
        fetch_wheels(objects, folder / WHEELS_FOLDER, job.wheels)
        install_wheels(folder / WHEELS_FOLDER, job.wheels, folder / job.wheels)
        use_installed(folder / job.wheels)
    if code is not None:
        identity = semantics.model.get("code", {})
        fetch_code(objects, code, identity)
        check_identity(code, identity)
    return Brought(
        data=found(semantics.data_digest, "data"),
        evaluated=found(job.evaluated_on, "evaluated") if job.evaluated_on else None,
        code=code,
        weights=FarWeights(objects, job.weights) if job.weights else None,
    )


NOTHING_BROUGHT = Brought()


def attests(
    driver: Driver, job: JobConfig, *, node: NodeId, instance: InstanceId, zone: ZoneId
) -> str:
    """Say what this machine computes with, before this node joins. "": the run computes so too;
    else why the node was refused, and it must end. Raises StoreUnavailable, and InputError when the
    machine lacks the device."""
    prepare(job.cluster)
    numerics = facts_of(local_numerics(job))
    event = Attested(node=node, instance=instance, zone=zone, numerics=numerics)
    said = driver.append(event, deadline_s=JOIN_DEADLINE_S)
    known = said.state.node(node)
    return "" if known is None or known.status.live else said.reason


def load_builder(
    job: JobConfig,
    strategy: Strategy,
    brought: Brought = NOTHING_BROUGHT,
    *,
    run_dir: Path | None = None,
    speed: float = 1.0,
) -> SlotBuilder:
    """Load data and model as the job says and check that they are those that the strategy was made
    for. `brought`: the data, on a machine that had none. `run_dir`: the folder with the weights
    that the run begins with, if they are another run's. `speed`: that of a virtual device.

    Raises InputError when data, code or weights are not those of the run. What the machine computes
    with was compared before (`attests`).
    """
    prepare(job.cluster)
    semantics = strategy.semantics
    if job.code:
        check_identity(Path(job.code), semantics.model.get("code", {}))
    workload = build_model(job, brought.weights)
    dataset = load_data(job, brought.data, own=workload.data)
    check_digest(job, dataset, semantics.data_digest)
    evaluated = load_eval(job, workload.data, workload.eval_data, brought.evaluated)
    check_eval_digest(job, evaluated)
    initial: Initial | None = None
    if job.train.init and brought.weights is not None:
        initial = partial(far_layers, brought.weights)
    elif job.train.init:
        if run_dir is None:
            raise InputError("this node has no folder of the run, and train.init lies there")
        initial = partial(load_layers, run_dir / INIT_FOLDER, digest=semantics.init)
    return SlotBuilder(
        job=job,
        strategy=strategy,
        workload=workload,
        dataset=dataset,
        evaluated=evaluated,
        initial=initial,
        device=device_of(job.cluster, strategy.placement.cut, speed),
    )


def warm_up(builder: SlotBuilder) -> None:
    """Load what a step loads at its first use, before anybody waits for this node. Where layers are
    computed again that is torch's compiler, though a step uses nothing of it. On a GPU that is its
    context and the kernels of any stage's step: take the first microbatch through one layer of each
    kind and the loss, forward and backward, then the step of these layers, and copies both ways.
    Nothing stays. A layer that fails fails in the step too, where its fault is reported. Raises
    what the device does not manage."""
    device = builder.device
    if builder.job.cluster.recomputes:
        import_module("torch._dynamo")
    if device.place.type == "cpu":
        return
    known = set()
    x, targets = (device.put(tensors) for tensors in builder.dataset.microbatch(0, 0))
    for index, factory in enumerate(builder.workload.layers):
        last = index == len(builder.workload.layers) - 1
        if id(factory) in known and not last:
            continue  # its output has the shape of its input, or what follows is not warmed up
        known.add(id(factory))
        try:
            x = _warm_layer(builder, index, x, targets if last else None)
        except USER_ERRORS as error:
            if scope_of(error) is FaultScope.DEVICE:
                raise
            break
    device.settle()


def _warm_layer(builder: SlotBuilder, index: int, x: Tensors, targets: Tensors | None) -> Tensors:
    """What a stage and its step do with one layer, on the input `x`; returns its output. With
    `targets` it is the last one."""
    train = builder.job.train
    layer = build_layer(builder.workload, index, train.seed).to(builder.device.place)
    at = {"seed": train.seed, "step": 0, "microbatch": 0}
    for _ in range(2):  # the second backward adds to the gradients of the first
        y = run_layers([(index, layer)], as_leaves(x), precision=train.precision, **at)
        if targets is None:
            run_back(y, tuple(torch.zeros_like(t) if t.requires_grad else None for t in y))
        else:
            loss = builder.workload.loss(unpacked(y), unpacked(targets))
            run_back((loss / builder.dataset.count(0),), None)
    named = {name: p for name, p in named_parameters([(index, layer)]) if p.requires_grad}
    params = [*named.values()]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    kept = builder.optimizer.new_state(named)
    end_step(builder.optimizer, params, grads, kept, clip_factor=CLIP_FACTOR)
    staged = builder.device.fetch([*as_leaves(y), *grads])
    builder.device.put(staged.tensors, staged)
    return as_leaves(y)


def needed_bytes(builder: SlotBuilder) -> int:
    """About how many bytes of parameters, moments and gradients the node of the largest stage will
    hold, including those of its replica, of a second pipeline where there can be one, and of the
    next stage once that is lost. 0 for a model whose shapes are known only once it is built."""
    if not builder.workload.plain:
        return 0
    placement = builder.strategy.placement
    pipelines = min(2, builder.batch.virtual_nodes)
    grid = Grid(pipelines=pipelines, stages=placement.grid.stages)
    stages = [builder.layout_of(placement.layers_of(p)) for p in range(grid.stages)]
    largest = LayerFacts(
        name="the largest stage",
        parameters=max(stage.trained_bytes for stage in stages) // FLOAT_BYTES,
        moment_bytes=max(stage.kept_bytes for stage in stages),
        frozen_bytes=max(stage.frozen_bytes for stage in stages),
        forward_flops=0.0,
        output_bytes=0,
        activation_bytes=0,
    )
    report = memory_report(
        [largest] * grid.stages,
        cut=range(grid.stages + 1),
        grid=grid,
        shape=builder.batch,
        mode=placement.redundancy,
    )
    return max(stage.total + COPIES * stage.gradients for stage in report)


def speed_of(job: JobConfig, zone: str) -> float:
    """The speed of a virtual device in this zone."""
    speeds, zones = job.cluster.virtual_speeds, job.cloud.zones
    return speeds[zones.index(zone)] if speeds and zone in zones else 1.0
