"""Evaluates what was trained: forwards alone, with the numbers that `[eval]` gives in a run.

Rule: a source is read as the run's own data are: bytes, or what the run's tokenizer makes of text.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bamboo.config.tree import TOKENS, EvalConfig, JobConfig
from bamboo.data.dataset import MadeOfText
from bamboo.data.evaluation import EvalData, check_eval_digest, load_eval
from bamboo.data.prepare import prepare
from bamboo.errors import InputError
from bamboo.models import Workload, data_beside
from bamboo.models.build import USER_ERRORS
from bamboo.ports import Told
from bamboo.runtime.after.trained import Trained
from bamboo.runtime.check.calm_eval import evaluated
from bamboo.token_files import HEADER, beside, read_facts, read_header
from bamboo.user_code.traces import placed_line_of

STDLIB = "python-stdlib"
FUNCTION = 'name a function that returns data, --source "file.py:held_out"'


def evaluate(
    trained: Trained,
    place: torch.device,
    told: Told,
    *,
    source: str,
    samples: int,
    tokenizer: str,
) -> dict[str, Any]:
    """Loss and metrics of the first `samples` samples of a source, 0: of all. `source`: see
    `_named`; "": that of the run's [eval]. Raises InputError for a source that is none for this
    model."""
    job, workload = trained.job, trained.workload
    if tokenizer:
        job = replace(job, data=replace(job.data, tokenizer=tokenizer))
    if ".py:" in source:
        data = _of_function(job, source, samples)
    else:
        data = _named(job, workload, source, samples) if source else _own(job, workload, samples)
    try:
        loss, metrics = evaluated(job, workload, data, trained.layers, place, told=told)
        count = data.count
    except InputError:
        raise
    except USER_ERRORS as error:
        raise InputError(
            f"source {source or 'of [eval]'}: the model, or its loss, does not take these data, or "
            f"they fail: {placed_line_of(error)}; give data as those of the training"
        ) from error
    return {
        "loss": loss,
        "metrics": metrics,
        "count": count,
        "unit": data.unit,
        "samples": data.samples,
        "digest": data.digest,
    }


def _of_function(job: JobConfig, source: str, samples: int) -> EvalData:
    """What a function of the user's gives, whatever the run was trained on."""
    found = data_beside(job, source)
    job = replace(job, eval=EvalConfig(every_steps=1, source=source, samples=samples))
    data = load_eval(job, None, found)
    assert data is not None, "it is asked for"
    return data


def _own(job: JobConfig, workload: Workload, samples: int) -> EvalData:
    """What [eval] of the job names, or else the model's own."""
    chosen = job.eval
    if not chosen.every_steps:
        if workload.eval_data is None:
            raise InputError(
                f"{job.file} has no [eval], and {job.model.model} has no eval_data; "
                + ("name a source" if isinstance(workload.data, MadeOfText | None) else FUNCTION)
            )
        chosen = EvalConfig(every_steps=1)
    data = _loaded(replace(job, eval=chosen), workload)
    if job.eval.every_steps:  # only by all of its samples it can be known
        check_eval_digest(job, data)
    if samples in (0, chosen.samples):
        return data
    return _loaded(replace(job, eval=replace(chosen, samples=samples)), workload)


def _named(job: JobConfig, workload: Workload, source: str, samples: int) -> EvalData:
    """Of `python-stdlib`, or of a path: of a token file, of the kind of files that the run was
    trained on, or of text whose bytes are tokens."""
    if not isinstance(workload.data, MadeOfText | None):
        raise InputError(
            f"{source} is of a text, and {job.model.model} brings data of its own; "
            + (
                FUNCTION
                if workload.eval_data is None
                else f"leave the source out, to evaluate its eval_data, or {FUNCTION}"
            )
        )
    kind = _kind(job, source)
    path = "" if source == STDLIB else source
    job = replace(job, eval=EvalConfig(every_steps=1, source=kind, path=path, samples=samples))
    if job.evaluated.is_prepared and not _is_prepared(kind, Path(source)):
        prepare(job, job.evaluated, lambda done, of_all: None, section="eval")
    return _loaded(job, workload)


def _kind(job: JobConfig, source: str) -> str:
    """`eval.source` of this source."""
    if source != STDLIB and beside(Path(source), HEADER).exists():
        return TOKENS
    if not job.data.is_prepared:
        return STDLIB if source == STDLIB else "path"
    if source == STDLIB or job.data.source == TOKENS:
        raise InputError(
            f"{source} is text, and the run was trained on tokens; name a token file, with its "
            "header beside it"
        )
    return job.data.source


def _is_prepared(kind: str, path: Path) -> bool:
    """Whether this is a token file that was prepared."""
    return kind == TOKENS and read_facts(path, read_header(path)) is not None


def _loaded(job: JobConfig, workload: Workload) -> EvalData:
    of_text = job.eval.source and "eval.source" not in job.own
    own = None if of_text else workload.eval_data
    data = load_eval(job, workload.data, own)
    assert data is not None, "it is asked for"
    return data
