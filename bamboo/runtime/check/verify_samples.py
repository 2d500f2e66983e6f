"""`python -m bamboo.runtime.check.verify_samples RUN_DIR`: was each sample used exactly once?

It reads what the run's nodes recorded of their committed steps (`samples.jsonl`), computes from the
job what those steps had to use, and compares; no step is trained again, and no data is needed.
Standard output: one JSON object {equal, steps, samples, epochs, first_difference, ...}; standard
error: a JSON line {step, steps} now and then. Exit codes: 0 equal, 5 different, 2 not comparable.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bamboo.checkpoint.final import MANIFEST
from bamboo.config.load import job_from_json
from bamboo.config.resolve import batch_shape
from bamboo.config.tree import JobConfig
from bamboo.coord.attested import FILE, attested_in
from bamboo.core.state import Fact
from bamboo.data.coverage import Addressing, check_coverage
from bamboo.data.order import SampleOrder
from bamboo.errors import InputError
from bamboo.named_files import read_own
from bamboo.runtime.check.stdout_answer import answer_equal, tell_progress
from bamboo.telemetry.samples import read_samples
from bamboo.topology.strategy import Strategy

TELL_EVERY = 1000
"""How many steps lie between two lines of progress."""


def verify_samples(run: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Check the run in this folder; see the top of the file. `progress`: (checked steps, steps).

    Raises InputError when the run has not ended, took no step, or drew the order of its samples in
    another way than it is drawn here.
    """
    job = job_from_json(_read(run / "resolved.json"))
    steps = _committed_steps(run)
    records = read_samples(run / "samples.jsonl")
    _same_order(run, job)
    order = SampleOrder(
        samples=_samples_of(run),
        batch=job.train.batch,
        microbatch=job.train.microbatch,
        seed=job.train.seed,
    )

    def told(step: int) -> None:
        if (step + 1) % TELL_EVERY == 0 or step + 1 == steps:
            progress(step + 1, steps)

    found = check_coverage(
        records,
        steps=steps,
        data=Addressing(
            microbatches=batch_shape(job).total,
            microbatch=job.train.microbatch,
            data_samples=order.samples,
            samples_of=order.of,
        ),
        told=told,
    )
    first = found.difference
    return {
        "schema_version": 1,
        "equal": first is None,
        "steps": found.steps,
        "microbatches": found.microbatches,
        "samples": found.samples,
        "epochs": found.whole_data_epochs,
        "samples_of_last_epoch": found.samples_of_last,
        "samples_in_epoch": found.data_samples,
        "undone_steps": found.undone_steps,
        "first_difference": None if first is None else asdict(first),
    }


def _committed_steps(run: Path) -> int:
    """The step of the final state; without one, how far the receipt says that the run came."""
    manifest = run / "final" / MANIFEST
    path = manifest if manifest.exists() else run / "receipt.json"
    try:
        steps = int(json.loads(_read(path))["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: {error}; the file is damaged") from error
    if steps < 1:
        raise InputError(f"{path}: the run finished no step; there is nothing to check")
    return steps


def _samples_of(run: Path) -> int:
    """How many samples the run's data has, as its launch counted them: the data is not read."""
    path = run / "resolved.json"
    try:
        samples = int(json.loads(_read(path))["samples"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: does not say how many samples its data hold ({error}); it is damaged, or of "
            "an older release"
        ) from error
    if samples < 1:
        raise InputError(f"{path}: samples = {samples}; the file is damaged")
    return samples


def _same_order(run: Path, job: JobConfig) -> None:
    """Raise InputError unless the order of the samples is drawn as it was in the run."""
    path = run / "strategy.json"
    try:
        of_run = Strategy.from_json(_read(path)).semantics
        numbers = of_run.batch, of_run.microbatch, of_run.virtual_nodes, of_run.seed
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: {error}; the file is damaged") from error
    train, attested = job.train, attested_in(run, of_run)
    release = _release(run, () if attested is None else attested.numerics)
    compared = {
        "batch, microbatch, virtual_nodes, seed": (
            (train.batch, train.microbatch, train.virtual_nodes, train.seed),
            numbers,
        ),
        # It draws the order of the samples.
        "the release of torch": (_plain(str(torch.__version__)), _plain(release)),
    }
    for name, (here, there) in compared.items():
        if here != there:
            raise InputError(
                f"{name} is {here!r} here and {there!r} in the run; check it with the files and "
                "the release of torch that it was trained with"
            )


def _plain(version: str) -> str:
    """A release without the build: the order is drawn on the CPU by each."""
    return version.partition("+")[0]


def _release(run: Path, numerics: Sequence[Fact]) -> str:
    """The release of torch that the run computed with."""
    found = [fact.value for fact in numerics if fact.name == "torch"]
    if not found:
        raise InputError(
            f"{run / FILE}: does not say which torch the run computed with; put it back as it was"
        )
    return found[0]


def _read(path: Path) -> str:
    try:
        return read_own(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}; name the folder of a run that has ended") from error


def main(arguments: list[str]) -> int:
    """The command; see the top of the file."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m bamboo.runtime.check.verify_samples RUN_DIR\n")
        return InputError.exit_code

    return answer_equal(lambda: verify_samples(Path(arguments[0]), tell_progress))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
