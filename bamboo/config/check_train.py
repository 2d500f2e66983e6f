"""Which optimizers, schedules and groups a job may name, and where the user's own code lies."""

from pathlib import Path

from bamboo.config.tree import Group, JobConfig
from bamboo.errors import InputError
from bamboo.planner.layers.kept import OPTIMIZERS
from bamboo.topology.strategy import AUTO

SCHEDULES = ("cosine", "linear", "constant")
_KNOWN = {
    "model.model": ("gpt",),
    "data.source": ("python-stdlib",),
    "eval.source": ("python-stdlib",),
    "train.optimizer": tuple(OPTIMIZERS),
    "train.schedule": SCHEDULES,
}
_FUNCTIONS = {
    "model.model": "build",
    "data.source": "data",
    "eval.source": "held_out",
    "train.optimizer": "make",
    "train.schedule": "schedule",
}
"""Key -> the function that its examples name."""
WITH_MOMENTUM = ("sgd", "rmsprop")


def check_own(job: JobConfig) -> None:
    """The user's own files lie side by side, because one folder is what they are imported from.
    Raises InputError."""
    first = ""
    for key, value in job.own.items():
        file, _, function = value.partition(":")
        if not file.endswith(".py") or not function.isidentifier():
            known = '"gpt", "hf:FOLDER"' if key == "model.model" else f'"{_KNOWN[key][0]}"'
            remedy = f'write {known} or "file.py:{_FUNCTIONS[key]}"'
            raise _at(job, key, value, f"names no {key.rpartition('.')[2]}", remedy)
        first = first or file
        if Path(file).parent != Path(first).parent:
            raise _at(job, key, value, f"is not beside {first}", "put it into the same folder")


def check_optimizer(job: JobConfig) -> None:
    """Raises InputError with the first key of the optimizer that is not possible."""
    train = job.train
    for key, value in (("train.optimizer", train.optimizer), ("train.schedule", train.schedule)):
        if key not in job.own and value not in _KNOWN[key]:
            raise _at(job, key, value, "is not possible", f"take {_choice(key)}")
    known = "train.optimizer" not in job.own
    if train.momentum and known and train.optimizer not in WITH_MOMENTUM:
        remedy = f"leave it out, or take {' or '.join(WITH_MOMENTUM)}"
        raise _at(
            job, "train.momentum", train.momentum, f"means nothing to {train.optimizer}", remedy
        )
    if train.nesterov and (train.optimizer != "sgd" or not train.momentum):
        raise _at(
            job, "train.nesterov", True, "is of sgd with a momentum", "leave it out, or set both"
        )
    for number, group in enumerate(train.group):
        _check_group(job, f"train.group[{number}]", group)


def _check_group(job: JobConfig, key: str, group: Group) -> None:
    decay, factor = group.weight_decay, group.learning_rate_factor
    if isinstance(decay, str) and decay != AUTO:
        raise _at(job, f"{key}.weight_decay", decay, "is no number", f'write one, or "{AUTO}"')
    if not isinstance(decay, str) and decay < 0:
        raise _at(job, f"{key}.weight_decay", decay, "is below 0", "write 0 for none")
    if factor <= 0:
        remedy = "write frozen = true for parameters that are to keep their values"
        raise _at(job, f"{key}.learning_rate_factor", factor, "is not above 0", remedy)
    if group.frozen and group != Group(match=group.match, frozen=True):
        remedy = "leave out learning_rate_factor and weight_decay, or frozen"
        raise _at(job, f"{key}.frozen", True, "leaves nothing to take steps", remedy)


def _choice(key: str) -> str:
    return f'one of {", ".join(_KNOWN[key])}, or "file.py:{_FUNCTIONS[key]}"'


def _at(job: JobConfig, key: str, value: object, problem: str, remedy: str) -> InputError:
    return InputError.at(file=job.file, key=key, value=value, problem=problem, remedy=remedy)
