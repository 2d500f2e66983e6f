"""What is done with what a run has trained: exported for other programs, evaluated, sampled.

Rule: each takes the state at the end of the run, or one of its checkpoints, and changes nothing of
the run. It works in a process of its own, by the run's own code.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bamboo import wiring
from bamboo.asked_files import new_folder
from bamboo.errors import InputError
from bamboo.named_files import what_is_wrong
from bamboo.ports import Told
from bamboo.runs.run_folder import RunFolder, job_of
from bamboo.runs.state_files import NoState, StateFiles, state_files

SAFETENSORS = "safetensors"
FORMS = (SAFETENSORS, "dcp")
STDLIB = "python-stdlib"
MOST_TOKENS = 1_000_000
LARGEST_SEED = 2**63 - 1


def export(folder: RunFolder, to: Path, *, step: int | None, form: str) -> dict[str, Any]:
    """Write what the run has trained into a new folder `to`: by `form` `safetensors` as its model's
    own library reads it, by `dcp` as torch.distributed.checkpoint does. Raises InputError."""
    if form not in FORMS:
        raise InputError(f"format {form!r} is unknown; take one of {', '.join(FORMS)}")
    with new_folder(to) as aside, _state(folder, step) as state:
        options = {"folder": str(aside), "form": form, "tokenizer": _tokenizer(folder)}
        found = _ask("export", folder, state, options, told=lambda done, of_all: None)
    return found | {"to": str(to), "format": form}


def evaluate(
    folder: RunFolder, *, source: str | Path | None, samples: int, step: int | None, told: Told
) -> dict[str, Any]:
    """Loss and metrics on the first `samples` samples (0: all) of a source: `python-stdlib` or the
    path of text or of a token file, or `file.py:function`, which returns data; None: of what [eval]
    names. Raises InputError."""
    if samples < 0:
        raise InputError(f"samples = {samples}: is no number of samples; give 1 or more")
    named = "" if source is None else str(source)
    if named and named != STDLIB:
        path, of_function, function = named.partition(".py:")
        path += ".py" * bool(of_function)
        if wrong := what_is_wrong(path, folder=not of_function):
            raise InputError(
                f"source {named}: {wrong}; name a text, a token file, {STDLIB}, or a function "
                'that returns data, "file.py:held_out"'
            )
        named = os.path.abspath(path) + (of_function and f":{function}")
    with _state(folder, step) as state:
        options = {"source": named, "samples": samples, "tokenizer": _tokenizer(folder)}
        return _ask("evaluate", folder, state, options, told=told)


def sample(
    folder: RunFolder,
    prompt: str,
    *,
    length: int,
    temperature: float,
    seed: int,
    tokenizer: str | Path | None,
    step: int | None,
    told: Told,
) -> dict[str, Any]:
    """The prompt, and up to `length` tokens that the model goes on with. `tokenizer` is the file of
    one, for a run that keeps none. Raises InputError."""
    if not 1 <= length <= MOST_TOKENS:
        raise InputError(f"length = {length}: is not possible; give 1 to {MOST_TOKENS:,} tokens")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(
            f"temperature = {temperature}: is not possible; give 0 for the likeliest token, 1 for "
            "the model's own odds"
        )
    if not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"seed = {seed}: is not possible; give a whole number from 0 to 2^63 - 1")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:  # as a terminal gives bytes that are none
        raise InputError(f"the prompt {prompt!r:.80} is no UTF-8 text; correct it") from error
    kept = _tokenizer(folder)
    if tokenizer is not None:
        if kept:
            raise InputError(f"run {folder.id} keeps its own tokenizer; leave {tokenizer} out")
        if wrong := what_is_wrong(Path(tokenizer)):
            raise InputError(f"tokenizer {tokenizer}: {wrong}; name a tokenizer.json")
        kept = os.path.abspath(tokenizer)
    options = {
        "prompt": prompt,
        "length": length,
        "temperature": float(temperature),
        "seed": seed,
        "tokenizer": kept,
    }
    with _state(folder, step) as state:
        return _ask("sample", folder, state, options, told=told) | {"seed": seed}


def _tokenizer(folder: RunFolder) -> str:
    """The run's own copy; of a run that was launched before copies were kept, the file that its job
    names, where it is still there; "" for none."""
    job = job_of(folder)
    if folder.tokenizer.exists():
        return str(folder.tokenizer.absolute())
    named = job.named(job.data.tokenizer) if job.data.tokenizer else None
    if named is not None and (wrong := what_is_wrong(named)):
        raise InputError(f"the tokenizer of run {folder.id}: {wrong}; put it back")
    return "" if named is None else os.path.abspath(named)


@contextmanager
def _state(folder: RunFolder, step: int | None) -> Iterator[StateFiles]:
    try:
        with state_files(folder, step) as found:
            yield found
    except NoState as error:
        if error.steps:
            listed = ", ".join(map(str, error.steps))
            remedy = f"name a step that has a checkpoint: {listed}"
        else:
            over = folder.receipt.exists()
            remedy = "put its files back" if over else "wait for its end"
            remedy = f"it has no checkpoint, either; {remedy}"
        raise InputError(f"{error.problem}; {remedy}") from error


def _ask(
    what: str, folder: RunFolder, state: StateFiles, options: Mapping[str, Any], *, told: Told
) -> dict[str, Any]:
    found = wiring.run_after(what, folder.path, state.files, options, told=told)
    return {"schema_version": 1, "run": folder.id, "step": state.step, **found}
