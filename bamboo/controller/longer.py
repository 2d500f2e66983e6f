"""A run that trains longer than planned: `bamboo resume RUN --steps N`.

Rules. (1) Finished steps stay as they are. They become a closed segment, and the next segment
begins with the weights and the moments after the last of them. (2) Each segment has its own
learning rate: warm-up and cosine count from its first step to N. (3) Nothing else that decides the
numbers may change. (4) Where the state to continue from is not kept, that is an error before
anything is started.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

from bamboo.checkpoint.catalogue import examine
from bamboo.checkpoint.manifest import HashAt
from bamboo.config.load import job_with
from bamboo.config.tree import JobConfig, Segment
from bamboo.errors import InputError
from bamboo.ports import ObjectStore
from bamboo.runs import final_state
from bamboo.runs.run_folder import RunFolder
from bamboo.telemetry.records import read_metrics
from bamboo.topology.strategy import Semantics

RATE_KEYS = ("learning_rate", "warmup_steps", "final_learning_rate")
"""Keys of [train] whose values may change in a further segment."""


def steps_done(folder: RunFolder) -> int:
    """How many steps a run that no longer lives has done, by its receipt or otherwise its books."""
    if folder.receipt.exists():
        return int(folder.read_json(folder.receipt)["step"])
    return max((metric.step + 1 for metric in read_metrics(folder.metrics)), default=0)


def is_further(job: JobConfig, overrides: Sequence[str], *, steps: int, done: int) -> bool:
    """Whether `--steps` asks for another segment, and not only for the rest of this one."""
    others = {f"train.{key}" for key in RATE_KEYS} & set(map(_key, overrides))
    return bool(others) or steps != job.train.steps or steps <= done


def longer(
    folder: RunFolder, job: JobConfig, overrides: Sequence[str], *, steps: int, done: int
) -> JobConfig:
    """The job of a run that has done `done` steps and is to do `steps` in all, in a further
    segment. A segment without a finished step is planned again. Raises InputError."""
    if done == 0:
        raise InputError(
            f"--steps {steps}: run {folder.id} has done no step that it could go on from; launch "
            f"the job again with --set train.steps={steps}"
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
    # A run that was restored from before a segment may end in the segment before it.
    current = next((one for one in job.segments if one.to_step >= done), newest)
    ended = [one for one in job.segments if one.to_step < done]
    made = job_with(job, [*overrides, f"train.steps={steps}"])
    return replace(made, segments=(*ended, replace(current, to_step=done)))


def expected(ours: Semantics, job: JobConfig) -> Semantics:
    """The semantics of the lengthened job if only learning rate and steps differ from `ours`, the
    run's semantics so far."""
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
    """How many stages the run's final state has, where the state after `done` steps exists only
    there and has to become a checkpoint; 0 where there is a good checkpoint. Raises InputError
    where it is in neither."""
    _, why = examine(objects, done, run=folder.id, semantic_hash=semantic_hash, layers=layers)
    if not why:
        return 0
    lacking = final_state.wrong_with_final(folder, step=done)
    if not lacking:
        return sum(1 for _ in folder.final.glob("stage-*.safetensors"))
    raise InputError(
        f"the state of run {folder.id} after step {done} is not kept, so nothing can go on from "
        f"it: {lacking}, and the checkpoint of step {done} {why}; put its files back, or "
        f"`bamboo resume {folder.id}` without --steps, where steps are left to be done"
    )


def _key(override: str) -> str:
    return override.partition("=")[0].strip()
