"""The weights that a run begins with, where its layers do not draw them: those of another run, by
`train.init = "run:ID[@step]"`, of another program, by `"dcp:FOLDER"`, or those in the folder of a
Hugging Face model.

Rule: only the weights are taken, neither the moments nor the place in the data. They are checked
before the launch and kept with the new run, which then no longer needs where they came from.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bamboo import wiring
from bamboo.checkpoint.initial import (
    Weights,
    check_weights,
    keep_weights,
    weights_in,
)
from bamboo.checkpoint.pretrained import check_pretrained, keep_pretrained, pretrained_in
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.kept_weights import INIT_FOLDER, weight_files
from bamboo.named_files import what_is_wrong
from bamboo.runs import run_folder
from bamboo.runs.run_folder import RunFolder
from bamboo.runs.state_files import NoState, state_files

_FORMS = 'write "run:ID", "run:ID@20" for a checkpoint of it, or "dcp:FOLDER"'
DCP = "dcp:"
_DCP_METADATA = ".metadata"
_INIT = re.compile(r"run:([^@\s]+)(?:@([0-9]{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the state of another run is."""

    folder: RunFolder
    step: int | None
    """None: the state at its end."""

    def __str__(self) -> str:
        at = "its end" if self.step is None else f"step {self.step}"
        return f"run {self.folder.id} after {at}"


def begin_with(job: JobConfig) -> tuple[JobConfig, Weights | None]:
    """The job with the digest of its initial weights, and those weights; None for a job that begins
    with its own. Raises InputError where they cannot be read, StorageUnavailable."""
    if _are_pretrained(job):
        there = weight_files(job.named(job.model.hf_folder))
        if not there:
            return job, None
        found = pretrained_in(there)
        return replace(job, weights=found.digest), found
    if not job.train.init:
        return job, None
    with _files(job) as (files, run, step):
        weights = weights_in(files, run=run, step=step)
    return replace(job, weights=weights.digest), weights


def keep(job: JobConfig, weights: Weights, folder: RunFolder) -> None:
    """Write them into the folder of the new run. Raises InputError when they have changed since, or
    the disk is full."""
    kept = folder.path / INIT_FOLDER
    try:
        if _are_pretrained(job):
            keep_pretrained(job.named(job.model.hf_folder), weights, kept)
            return
        with _files(job) as (files, _, _):
            keep_weights(files, weights, kept)
    except OSError as error:
        raise InputError(
            f"{kept}: {error.strerror}; make room there, or set BAMBOO_HOME to a folder on another "
            "disk"
        ) from error


def check_kept(folder: RunFolder, before: JobConfig, job: JobConfig) -> None:
    """Raise InputError unless the run in this folder, which continues as `job`, still has its
    initial weights. `verify` needs them, and so does a run that begins again from step 0."""
    if job.train.init != before.train.init:
        raise _at(
            job,
            f"names other weights than run {folder.id} began with, {before.train.init!r}",
            "leave the setting as it was, or launch the job as a run of its own",
        )
    if job.weights:
        check = check_pretrained if _are_pretrained(job) else check_weights
        check(folder.path / INIT_FOLDER, digest=job.weights)


def said(weights: Weights) -> str:
    """Where the weights come from, in a line."""
    if not weights.run:
        count = len(weights.tensors)
        return f"begins with the {count} tensors of its folder ({weights.digest[:12]})"
    of_run = f"of run {weights.run} after step {weights.step}"
    return (
        f"begins with the weights {f'in {weights.run}' if weights.run.startswith(DCP) else of_run} "
        f"({weights.digest[:12]}), kept with the run; moments, data and learning rate start over"
    )


def source_of(job: JobConfig) -> Source:
    """The source that the job names. Raises InputError for a text that names no run."""
    found = _INIT.fullmatch(job.train.init)
    if found is None:
        raise _at(job, "names no run", _FORMS)
    step = None if found[2] is None else int(found[2])
    try:
        return Source(folder=run_folder.find(run_folder.home(), found[1]), step=step)
    except InputError as error:
        raise InputError(f"{job.file}: train.init = {job.train.init!r}: {error}") from error


def check_fits(job: JobConfig, weights: Weights, seen: Mapping[str, Any]) -> None:
    """Raise InputError that names the first tensor that differs from the job's model, as the
    preflight has `seen` it. Where the preflight looked at no layer there is nothing to compare, and
    of a Hugging Face model's own weights it has compared the names itself."""
    if _are_pretrained(job):
        return
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        f"{layer['index']}.{name}": (layer.get("types", {}).get(name, "F32"), tuple(shape))
        for layer in seen["layers"]
        for name, shape in layer.get("shapes", {}).items()
    }
    if not shapes:
        return
    for name in sorted(shapes.keys() | weights.shapes.keys(), key=_in_order):
        ours, theirs = shapes.get(name), weights.shapes.get(name)
        if ours is None or ours != theirs:
            here = "not there" if ours is None else f"{ours[0]} of shape {list(ours[1])}"
            there = "not there" if theirs is None else f"{theirs[0]} of shape {list(theirs[1])}"
            raise _at(
                job,
                f"is of another model: {name} is {here} in this one and {there} in those weights",
                "take weights of the same [model]",
            )


def _are_pretrained(job: JobConfig) -> bool:
    """Whether the weights, if there are any, are those of a Hugging Face model's folder."""
    return job.model.is_hf and not job.train.init


def _in_order(name: str) -> tuple[int, str]:
    layer, _, rest = name.partition(".")
    return int(layer), rest


@contextmanager
def _files(job: JobConfig) -> Iterator[tuple[Sequence[Path], str, int]]:
    """The files of the state that the job names, the run and its number of steps, until the block
    ends."""
    if job.train.init.startswith(DCP):
        there = job.named(job.train.init.removeprefix(DCP))
        if wrong := what_is_wrong(there / _DCP_METADATA):
            raise _at(job, wrong, "name a folder that torch.distributed.checkpoint wrote")
        with TemporaryDirectory(prefix="bamboo-") as scratch:
            wiring.run_take(job, there, Path(scratch))
            yield sorted(Path(scratch).glob("*.safetensors")), job.train.init, 0
        return
    source = source_of(job)
    with ExitStack() as stack:
        try:
            found = stack.enter_context(state_files(source.folder, source.step))
        except NoState as error:
            remedy = "take another run"
            if error.steps:
                remedy = f'take a checkpoint of it, "run:{source.folder.id}@{error.steps[-1]}"'
            if source.step is not None and error.steps:
                named = ", ".join(map(str, error.steps))
                remedy = f"take one that is there ({named})"
            raise _at(job, error.problem, remedy) from error
        yield found.files, source.folder.id, found.step


def _at(job: JobConfig, problem: str, remedy: str) -> InputError:
    return InputError.at(
        file=job.file, key="train.init", value=job.train.init, problem=problem, remedy=remedy
    )
