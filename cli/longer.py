"""A run that trains longer than it was to: `bamboo resume RUN --steps N`.

Rules. (1) What is done stays as it is: the steps so far become a segment that is closed, and the
next one begins with the weights and the moments after the last of them. (2) A segment has its own
learning rate: warm-up and cosine count from its first step to N. (3) Nothing else of what decides
the numbers may change. (4) Where the state to go on from is not kept, that is said before anything
is started.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

from bamboo.checkpoint.catalogue import examine
from bamboo.checkpoint.manifest import HashAt
from bamboo.config.load import job_with
from bamboo.config.tree import JobConfig, Segment
from bamboo.errors import InputError
from bamboo.ports import ObjectStore
from bamboo.telemetry.reader import read_metrics
from bamboo.topology.strategy import Semantics
from cli import finish
from cli.runs import RunFolder

RATE_KEYS = ("learning_rate", "warmup_steps", "final_learning_rate")
"""Of [train]: what a further segment may have other values of."""


def steps_done(folder: RunFolder) -> int:
    """How many steps a run has done that lives no more: its receipt says so, else its books."""
    if folder.receipt.exists():
        return int(folder.read_json(folder.receipt)["step"])
    return max((metric.step + 1 for metric in read_metrics(folder.metrics)), default=0)


def is_further(job: JobConfig, overrides: Sequence[str], *, steps: int, done: int) -> bool:
    """Whether `--steps` asks for another segment; what is left of this one is none."""
    others = {f"train.{key}" for key in RATE_KEYS} & set(map(_key, overrides))
    return bool(others) or steps != job.train.steps or steps <= done


def longer(
    folder: RunFolder, job: JobConfig, overrides: Sequence[str], *, steps: int, done: int
) -> JobConfig:
    """The job of a run that has `done` steps and is to come to `steps` of them, in a further
    segment. A segment in which no step was done is planned anew. Raises InputError."""
    if done == 0:
        raise InputError(
            f"--steps {steps}: run {folder.id} has done no step that it could go on from; launch "
            f"the job anew with --set train.steps={steps}"
        )
    if steps <= done:
        raise InputError(
            f"--steps {steps}: run {folder.id} has done {done} steps; give the new total, "
            f"{done + 1} or more"
        )
    if "train.steps" in map(_key, overrides):
        raise InputError(f"--set train.steps: --steps {steps} says that; leave one of them out")
    train = job.train
    rates = {key: getattr(train, key) for key in RATE_KEYS}
    newest = Segment(to_step=done, steps=train.steps, **rates)
    # A run that was restored from before a segment may end in the one before it.
    current = next((one for one in job.segments if one.to_step >= done), newest)
    ended = [one for one in job.segments if one.to_step < done]
    made = job_with(job, [*overrides, f"train.steps={steps}"])
    return replace(made, segments=(*ended, replace(current, to_step=done)))


def expected(ours: Semantics, job: JobConfig) -> Semantics:
    """What the semantics of the lengthened job are where only learning rate and steps are others
    than `ours`, the run's so far."""
    return replace(
        ours,
        steps=job.train.steps,
        optimizer={**ours.optimizer, **{key: getattr(job.train, key) for key in RATE_KEYS}},
        segments=[asdict(segment) for segment in job.segments],
    )


def stages_to_keep(
    folder: RunFolder,
    objects: ObjectStore,
    *,
    done: int,
    semantic_hash: HashAt,
    layers: Sequence[int],
) -> int:
    """Of how many stages the run's final state is, where the state after `done` steps is that
    alone, and it is to become a checkpoint; 0: there is a good one. Raises InputError where it is
    neither."""
    _, why = examine(objects, done, run=folder.id, semantic_hash=semantic_hash, layers=layers)
    if not why:
        return 0
    lacking = finish.wrong_with_final(folder, step=done)
    if not lacking:
        return sum(1 for _ in folder.final.glob("stage-*.safetensors"))
    raise InputError(
        f"the state of run {folder.id} after step {done} is not kept, so nothing can go on from "
        f"it: {lacking}, and the checkpoint of step {done} {why}; put its files back, or "
        f"`bamboo resume {folder.id}` without --steps, where steps are left to be done"
    )


def _key(override: str) -> str:
    return override.partition("=")[0].strip()
