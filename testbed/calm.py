"""What a run is held against: the calm reference of the same semantics, computed once per job."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from bamboo.config.resolve import batch_shape, resolve
from bamboo.config.tree import DataConfig, JobConfig, ModelConfig, TrainConfig
from bamboo.core.events import StopRequested
from bamboo.core.state import Outcome, State
from bamboo.data.coverage import Addressing, check_coverage
from bamboo.data.dataset import Dataset, load_data
from bamboo.models import Workload, build_model
from bamboo.ports import FENCED_STATUS
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.step.numerics import prepare
from bamboo.telemetry.samples import SamplesRecord
from testbed.cluster import Cluster

STEPS_MORE = 3
"""Steps that a run takes in what it has come to, before it is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calm:
    """Losses as exact hex text by step, and all parameters and moments after the last step."""

    losses: dict[int, str]
    tensors: dict[str, Tensor]


def calm(job: JobConfig, steps: int | None = None) -> Calm:
    """The calm run of a job, or of its first `steps` steps."""
    job = resolve(job)
    return _calm(job.model, job.data, job.train, job.train.steps if steps is None else steps)


@lru_cache(maxsize=64)
def _calm(model: ModelConfig, data: DataConfig, train: TrainConfig, steps: int) -> Calm:
    job = JobConfig(model=model, data=data, train=train)
    begun = _BEGUN.pop(job, None)
    if begun is None or begun[0].steps_done > steps:
        prepare(job.cluster)
        begun = (CalmRun(job, *trained_by(model, data, train)), {})
    run, losses = begun
    for step in range(run.steps_done, steps):
        losses[step] = run.step().hex()
    if len(_BEGUN) < MOST_BEGUN:
        _BEGUN[job] = begun
    return Calm(losses=dict(losses), tensors={n: t.clone() for n, t in run.tensors().items()})


_BEGUN: dict[JobConfig, tuple[CalmRun, dict[int, str]]] = {}
"""Calm runs that can go on, where the same job is asked for with more steps."""
MOST_BEGUN = 16


def difference(run: Cluster, steps: int | None = None) -> str:
    """The first loss or final tensor that is not, bit for bit, the calm run's, or the first sample
    that was not used once; "" when all is well."""
    expected, found = calm(run.job, steps), run.losses()
    if expected.losses.keys() != found.keys():
        return f"losses of steps {sorted(expected.losses.keys() ^ found.keys())}"
    for step, loss in expected.losses.items():
        if found[step] != loss:
            return f"loss of step {step}: {found[step]} is not {loss}"
    tensors: dict[str, Tensor] = {}
    for file in sorted((run.directory / "final").glob("*.safetensors")):
        tensors |= load_file(file)
    if expected.tensors.keys() != tensors.keys():
        return f"tensors {sorted(expected.tensors.keys() ^ tensors.keys())}"
    for name, tensor in expected.tensors.items():
        if not torch.equal(tensors[name], tensor):
            return f"tensor {name}"
    return samples_difference(run.job, run.metrics("step"), steps)


def samples_difference(
    job: JobConfig, step_records: Iterable[Mapping[str, Any]], steps: int | None = None
) -> str:
    """The first step, microbatch or sample that was not used exactly once, by what the nodes
    recorded; "" when all were."""
    job = resolve(job)
    _, data = trained_by(job.model, job.data, job.train)
    addressing = Addressing(
        microbatches=batch_shape(job).total,
        microbatch=job.train.microbatch,
        data_samples=data.samples,
        samples_of=data.sample_indices,
    )
    records = [SamplesRecord.of_step(r["step"], r["used"]) for r in step_records]
    steps = job.train.steps if steps is None else steps
    found = check_coverage(records, steps=steps, data=addressing).difference
    return "" if found is None else f"samples: {found.sentence}"


@lru_cache(maxsize=64)
def trained_by(
    model: ModelConfig, data: DataConfig, train: TrainConfig
) -> tuple[Workload, Dataset]:
    """What is trained on what, in every layout of a job and by its calm run."""
    job = JobConfig(model=model, data=data, train=train)
    workload = build_model(job)
    return workload, load_data(job, own=workload.data)


def assert_calm(run: Cluster) -> None:
    """Let the run end, done, with the calm run's bits, nobody lost but those that were killed or
    are to be fenced, and every other process ended in order."""
    state = run.finish()
    assert state.outcome == "done", run.report()
    _assert_in_order(run, state, None)


def assert_calm_so_far(run: Cluster) -> None:
    """Have the run end some steps from here, and then the same: what it was to show it has shown,
    and no step is trained that shows nothing more."""
    run.wait_step(max(run.losses(), default=0) + STEPS_MORE)
    run.append(StopRequested(reason="it has shown enough", outcome=Outcome.STOPPED))
    state = run.finish()
    assert state.outcome == "stopped", run.report()
    assert state.stop_at_step is not None
    _assert_in_order(run, state, state.stop_at_step + 1)


def _assert_in_order(run: Cluster, state: State, steps: int | None) -> None:
    found = difference(run, steps)
    assert not found, f"{found}\n{run.report()}"
    killed = run.killed | {stamp["node"] for stamp in run.stamps()}
    assert {n.id for n in state.nodes if n.status == "gone"} <= killed | run.fenced, run.report()
    special = dict.fromkeys(run.fenced, FENCED_STATUS) | dict.fromkeys(killed, -9)
    expected = {node: special.get(node, 0) for node in run.processes}
    assert run.statuses() == expected, run.report()
