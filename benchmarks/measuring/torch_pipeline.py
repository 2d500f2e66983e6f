"""The same training by torch alone: a pipeline of torch.distributed.pipelining, or one process.

Rule: nothing of our runtime runs here, only layers and data, so that the comparison is between
executors; but the C library keeps freed memory here too, as it does in our workers. Each rank is a
process of its own that stamps the end of its steps.

After the schedule the gradients of each stage are added over pipelines in one bucket by Gloo, as
DistributedDataParallel does, but not during the backward. The norm for the clipping is each stage's
own (torch.nn.utils.get_total_norm), its square added over stages in float32 by Gloo: one number.
The learning rate is constant; ours follows its schedule.
"""

import contextlib
import math
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset, load_data
from bamboo.models import build_layer, build_model
from bamboo.runtime.device.host_memory import keep_freed_memory
from benchmarks.measuring.turns import Contender, Stamps
from benchmarks.peers.processes import DEADLINE_S, die_with_parent

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
SINGLE = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process: its pipeline and stage in the job's grid."""

    number: int
    pipelines: int
    stages: int

    @property
    def pipeline(self) -> int:
        return self.number // self.stages

    @property
    def stage(self) -> int:
        return self.number % self.stages

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1


@contextlib.contextmanager
def torchs(name: str, job: JobConfig, cut: Sequence[int]) -> Iterator[Contender]:
    """The job under the torch schedule that `name` names, or in one plain loop of one thread
    (`single`). It must not end before the `with` block does."""
    size = 1 if name == SINGLE else job.cluster.pipelines * job.cluster.stages
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        arguments = (Path(folder), job, name, tuple(cut))
        ranks = [context.Process(target=_guarded, args=(rank, *arguments)) for rank in range(size)]
        for process in ranks:
            process.start()

        def send(number: int) -> None:
            for process in ranks:
                if process.exitcode is not None:
                    raise RuntimeError(f"a rank of {name} ended with {process.exitcode}")
                assert process.pid is not None
                os.kill(process.pid, number)

        try:
            pids = tuple(process.pid for process in ranks if process.pid is not None)
            yield Contender(name=name, folder=Path(folder), pids=pids, send=send)
        finally:
            for process in ranks:
                process.kill()
                process.join(DEADLINE_S)


def _guarded(number: int, folder: Path, job: JobConfig, name: str, cut: tuple[int, ...]) -> None:
    die_with_parent()
    torch.set_num_threads(1)
    keep_freed_memory()
    stamps = Stamps(folder, str(number))
    try:
        if name == SINGLE:
            parameters = _single(job, stamps)
        else:
            pipelines, stages = job.cluster.pipelines, job.cluster.stages
            rank = Rank(number=number, pipelines=pipelines, stages=stages)
            store = dist.FileStore(f"{folder}/store", pipelines * stages)
            dist.init_process_group("gloo", store=store, rank=number, world_size=pipelines * stages)
            parameters = _pipeline_rank(rank, job, SCHEDULES[name], cut, stamps)
        _write_weights(folder, number, parameters)
    except BaseException:
        traceback.print_exc()
        raise


def weights_of(folder: Path, number: int) -> Path:
    """The file of a rank's parameters, in order, after the job's last step."""
    return folder / f"weights-{number}.safetensors"


def _write_weights(folder: Path, number: int, parameters: Sequence[nn.Parameter]) -> None:
    path = weights_of(folder, number)
    named = {f"{place:04}": x.detach().contiguous() for place, x in enumerate(parameters)}
    save_file(named, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def _single(job: JobConfig, stamps: Stamps) -> list[nn.Parameter]:
    workload, data = build_model(job), load_data(job)
    module = nn.Sequential(
        *(build_layer(workload, i, job.train.seed) for i in range(len(workload.layers)))
    )
    tokens = job.train.batch * job.model.context
    parameters = list(module.parameters())
    optimizer = _optimizer(job, parameters)
    for step in range(job.train.steps):
        optimizer.zero_grad()
        total = 0.0
        for m in range(job.train.batch // job.train.microbatch):
            (inputs,), (targets,) = data.microbatch(step, m)
            loss = workload.loss(module(inputs), targets)
            (loss / tokens).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        _clip(job, parameters, alone=True)
        optimizer.step()
        stamps.step()
    return parameters


def _pipeline_rank(
    rank: Rank, job: JobConfig, schedule: Any, cut: tuple[int, ...], stamps: Stamps
) -> list[nn.Parameter]:
    pipelines, stages = rank.pipelines, rank.stages
    rows = [dist.new_group([d * stages + p for p in range(stages)]) for d in range(pipelines)]
    columns = [dist.new_group([d * stages + p for d in range(pipelines)]) for p in range(stages)]
    row, column = rows[rank.pipeline], columns[rank.stage]

    workload, data = build_model(job), load_data(job)
    first, stop = list(pairwise(cut))[rank.stage]
    module = nn.Sequential(*(build_layer(workload, i, job.train.seed) for i in range(first, stop)))
    parameters = list(module.parameters())
    optimizer = _optimizer(job, parameters)
    tokens = job.train.batch * job.model.context

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return workload.loss(output, target) / tokens

    stage = PipelineStage(module, rank.stage, stages, torch.device("cpu"), group=row)
    microbatches = job.train.batch // job.train.microbatch // pipelines
    runner = schedule(stage, microbatches, loss_fn=loss, scale_grads=False)
    mine = range(rank.pipeline * microbatches, (rank.pipeline + 1) * microbatches)
    for step in range(job.train.steps):
        optimizer.zero_grad()
        _run_schedule(runner, rank, data, step, mine)
        if pipelines > 1:
            _add_over_pipelines(parameters, column)
        _clip(job, parameters, group=row)
        optimizer.step()
        stamps.step()
    return parameters


def _run_schedule(runner: Any, rank: Rank, data: Dataset, step: int, mine: range) -> None:
    losses: list[Tensor] = []
    if rank.is_first:
        runner.step(torch.cat([data.microbatch(step, m)[0][0] for m in mine]))
    elif rank.is_last:
        targets = torch.cat([data.microbatch(step, m)[1][0] for m in mine])
        runner.step(target=targets, losses=losses)
        sum(float(x.detach()) for x in losses)
    else:
        runner.step()


def _optimizer(job: JobConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    train = job.train
    groups = [
        {"params": [p for p in parameters if (p.dim() >= 2) is decays], "weight_decay": decay}
        for decays, decay in ((True, train.weight_decay), (False, 0.0))
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.learning_rate,
        betas=(train.beta1, train.beta2),
        eps=train.epsilon,
        fused=True,
    )


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def _add_over_pipelines(parameters: Sequence[nn.Parameter], column: Any) -> None:
    """The gradients are views of the bucket afterwards, so nothing is copied back."""
    trained = [p for p in parameters if p.grad is not None]
    gradients = _gradients(trained)
    bucket = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]
    dist.all_reduce(bucket, group=column)
    parts = _unflatten_dense_tensors(bucket, gradients)  # type: ignore[no-untyped-call]
    for parameter, part in zip(trained, parts, strict=True):
        parameter.grad = part


def _clip(
    job: JobConfig, parameters: list[nn.Parameter], *, group: Any = None, alone: bool = False
) -> None:
    if not job.train.clip_norm:
        return
    norm = torch.nn.utils.get_total_norm(_gradients(parameters))
    if not alone:
        square = norm * norm
        dist.all_reduce(square, group=group)
        norm = square.sqrt()
    if not math.isfinite(float(norm)):
        raise RuntimeError(f"the gradient norm is {float(norm)}")
    torch.nn.utils.clip_grads_with_norm_(parameters, job.train.clip_norm, norm)
