"""Whether the keys of `[eval]` are possible, alone and with the rest of the job."""

from bamboo.config.check_data import SOURCES
from bamboo.config.tree import EvalConfig, JobConfig, StopConfig
from bamboo.errors import InputError
from bamboo.topology.strategy import AUTO

_WITH_PATH = tuple(source for source in SOURCES if source != "python-stdlib")
LOSS = "loss"
"""The metric that every model has."""


def check_eval(job: JobConfig) -> None:
    """Raises InputError with the first key of the evaluation that is not possible."""
    chosen = job.eval
    if not chosen.every_steps:
        if chosen != EvalConfig():
            raise _at(job, "every_steps", 0, "asks for no evaluation", "give a number of steps")
        return
    if chosen.every_steps > job.train.steps:
        raise _at(
            job,
            "every_steps",
            chosen.every_steps,
            f"is beyond the run, which has train.steps = {job.train.steps}",
            f"take at most {job.train.steps}",
        )
    if not chosen.samples:
        raise _at(job, "samples", 0, "evaluates nothing", "give a number of samples from 1")
    _check_source(job)
    if chosen.stop != StopConfig():
        _check_stop(job, chosen.stop)


def _check_source(job: JobConfig) -> None:
    chosen, known = job.eval, f'take one of {", ".join(SOURCES)}, or "file.py:held_out"'
    own = "eval.source" in job.own
    if not chosen.source:
        if not job.model.is_own:
            raise _at(job, "source", "", "names no text", known)
    elif not own and chosen.source not in SOURCES:
        raise _at(job, "source", chosen.source, "is not possible", known)
    if (chosen.source in _WITH_PATH) != bool(chosen.path):
        problem = "names no file or folder" if not chosen.path else "is not read"
        remedy = f"give it together with one of {', '.join(_WITH_PATH)} as eval.source"
        raise _at(job, "path", chosen.path, problem, remedy)
    if chosen.source in ("text", "jsonl") and not job.evaluated.tokenizer:
        remedy = "train on tokens, with data.tokenizer"
        raise _at(job, "source", chosen.source, "needs the tokenizer of [data]", remedy)


def _check_stop(job: JobConfig, stop: StopConfig) -> None:
    if not stop.metric:
        raise _at(job, "stop.metric", "", "names no metric", f'give "{LOSS}" or one of the model')
    if stop.patience < 1:
        words = "1 ends the run with the first evaluation that is no better"
        raise _at(job, "stop.patience", stop.patience, "is below 1", f"give 1 or more: {words}")
    if stop.better not in (AUTO, "lower", "higher"):
        remedy = 'write "lower" or "higher"'
        raise _at(job, "stop.better", stop.better, "is not possible", remedy)
    if stop.better == AUTO and stop.metric != LOSS:
        words = f"does not say which value of {stop.metric!r} is the better one"
        raise _at(job, "stop.better", AUTO, words, 'write "lower" or "higher"')


def _at(job: JobConfig, key: str, value: object, problem: str, remedy: str) -> InputError:
    return InputError.at(
        file=job.file, key=f"eval.{key}", value=value, problem=problem, remedy=remedy
    )
