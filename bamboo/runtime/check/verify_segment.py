"""`python -m bamboo.runs.segment RUN_DIR A B`: are steps A to B-1 of a run, bit for bit,
what a calm run gives that begins from one of its checkpoints?

This is for models too large to train twice. The calm reference takes parameters and moments from
the newest good checkpoint at or before step A (A = 0: the initial state) and trains to B. It
compares every loss of these steps with what is measured beside it, and every tensor with what the
run kept of B: its checkpoint, its final state. Rule: the state that the segment begins from is
believed; verifying the segment that ends there checks it. Standard output: one JSON object {equal,
first_difference, from_checkpoint, steps, ...}; standard error: one JSON line {step, steps, loss}
per step. Exit codes: 0 equal, 5 different, 2 not comparable.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bamboo.checkpoint.catalogue import examine, load_tensors, steps
from bamboo.checkpoint.final import MANIFEST, read_final, tensor_sha256
from bamboo.checkpoint.manifest import MANIFEST as COMPLETED_BY
from bamboo.checkpoint.manifest import HashAt, Manifest, folder_of
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError, StorageUnavailable
from bamboo.ports import ObjectStore
from bamboo.runtime.check.compared import Recorded, compare, recorded_of
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.check.stdout_answer import answer_equal, tell_progress
from bamboo.runtime.check.verify import (
    Progress,
    calm_run,
    compare_tensors,
    job_of_run,
    read_text,
    repeatable,
    step_of,
)
from bamboo.runtime.check.verify_evals import Evaluations
from bamboo.runtime.step.numerics import prepare

CheckpointsOf: TypeAlias = Callable[[Path, JobConfig], tuple[str, ObjectStore]]
"""Where the run in a folder keeps its checkpoints: the address, for a person, and the store."""


def verify_segment(
    run: Path, first: int, stop: int, progress: Progress, *, checkpoints: CheckpointsOf
) -> dict[str, Any]:
    """Compare steps `first` to `stop` - 1 of the run in this folder with a calm run; see the top of
    the file.

    The first difference is the first loss that differs, otherwise the first tensor, in name order,
    of the checkpoint of `stop`, then of the final state (`of` says which). Raises InputError when
    the run did not come that far, has no good checkpoint to begin from, the checkpoint of `stop` is
    damaged, or this machine cannot repeat the run's bits.
    """
    if not 0 <= first < stop:
        raise InputError(f"{first}:{stop} is no segment; give A:B with A < B for steps A to B-1")
    job = job_of_run(run)
    text = _whole_lines(run / "metrics.jsonl")
    recorded = recorded_of(text)
    done = _steps_done(run, recorded)
    if stop > done:
        raise InputError(
            f"{first}:{stop} goes beyond the run, which has done {done} steps; give A:B with B at "
            f"most {done}"
        )
    prepare(job.cluster)
    ours, workload, data = repeatable(run, job)
    try:
        kept = _Kept(*checkpoints(run, job), run.resolve().name, ours.hash_at)
        start = kept.start(first, stop, done) if first else None
        witnesses = kept.of(stop) | _final_of(run, stop)
        calm = calm_run(run, job, workload, data)
        if start is not None:
            kept.load(calm, start)
    except StorageUnavailable as error:
        raise InputError(f"{error}; a run that goes on deletes old ones: ask again") from error
    result: dict[str, Any] = {
        "schema_version": 1,
        "equal": True,
        "first_difference": None,
        "semantic_hash": ours.hash(),
        "segment": [first, stop],
        "from_checkpoint": calm.steps_done,
        "steps": stop - first,
        "metrics": [],
        "evaluations": 0,
        "compared_with": list(witnesses),
        "tensors": len(calm.tensors()) if witnesses else 0,
        "passed_over": kept.passed_over,
    }
    evaluations = Evaluations(job, workload, text, stops=False)
    return result | _compare(
        calm, range(first, stop), recorded, evaluations, witnesses, progress=progress
    )


def _compare(
    calm: CalmRun,
    segment: range,
    recorded: Mapping[int, Sequence[Recorded]],
    evaluations: Evaluations,
    witnesses: Mapping[str, Mapping[str, str]],
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Train to the segment's end; the fields that say what differs first, {} when nothing does."""
    measured: dict[str, Any] = {}
    for step in range(calm.steps_done, segment.stop):
        ours = step_of(calm)
        progress(step + 1, segment.stop, ours.loss)
        if step in segment:
            found = compare(step, ours, recorded.get(step, []))
            if found := found or evaluations.compare(calm, last=segment.stop):
                return found
        measured = {"metrics": sorted(ours.metrics), "evaluations": evaluations.count}
    for name, tensors in witnesses.items():
        differing = compare_tensors(calm, tensors)
        if differing:
            differing["first_difference"]["of"] = name
            return differing
    return measured


class _Kept:
    """The run's good checkpoints."""

    def __init__(self, url: str, objects: ObjectStore, run: str, semantic_hash: HashAt) -> None:
        self._url = url
        self._objects = objects
        self._run = run
        self._semantic_hash = semantic_hash
        self._steps = steps(objects)
        self.passed_over: list[str] = []
        """A sentence for each checkpoint that was examined and is not used."""

    def start(self, first: int, stop: int, done: int) -> Manifest:
        """The newest good one at or before step `first`. Raises InputError when there is none."""
        for step in self._steps:
            if 0 < step <= first and (found := self._good(step)) is not None:
                return found
        later = sorted(step for step in self._steps if step > first and self._complete(step))
        told = [
            f"there is no good checkpoint at or before step {first} in {self._url}",
            *self.passed_over,
            _what_can_be_verified(later, stop, done),
        ]
        raise InputError("; ".join(told))

    def of(self, step: int) -> dict[str, dict[str, str]]:
        """{"checkpoint": {tensor: SHA-256}} of that step, {} where there is none or it was never
        completed. Raises InputError for a damaged one."""
        if step not in self._steps:
            return {}
        complete, found = self._complete(step), self._good(step)
        if found is None and complete:
            raise InputError(
                f"{self.passed_over[-1]}; it cannot be compared with: delete it, or choose "
                "another B"
            )
        if found is None:
            return {}
        hashes: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="bamboo-") as scratch:
            for shard in found.shards:
                held = load_tensors(self._objects, found, shard.tensors, scratch=Path(scratch))
                hashes |= {name: tensor_sha256(tensor) for name, tensor in held.items()}
        return {"checkpoint": hashes}

    def load(self, calm: CalmRun, manifest: Manifest) -> None:
        """Set the calm run to a checkpoint, one shard after the other."""
        mine = {name: (tensor.shape, tensor.dtype) for name, tensor in calm.tensors().items()}
        odd = mine.keys() ^ {name for shard in manifest.shards for name in shard.tensors}
        with tempfile.TemporaryDirectory(prefix="bamboo-") as scratch:
            for shard in () if odd else manifest.shards:
                held = load_tensors(self._objects, manifest, shard.tensors, scratch=Path(scratch))
                odd |= {n for n, t in held.items() if (t.shape, t.dtype) != mine[n]}
                if not odd:
                    calm.load(held, manifest.step)
        if odd:
            raise InputError(
                f"the checkpoint of step {manifest.step} is not of this model: {min(odd)} is in "
                "one of them only, or has another shape; begin before it"
            )

    def _good(self, step: int) -> Manifest | None:
        found, why = examine(self._objects, step, run=self._run, semantic_hash=self._semantic_hash)
        if why:
            self.passed_over.append(f"the checkpoint of step {step} {why}")
            return None
        return found

    def _complete(self, step: int) -> bool:
        return self._objects.get(f"{folder_of(step)}/{COMPLETED_BY}") is not None


def _what_can_be_verified(later: Sequence[int], stop: int, done: int) -> str:
    """The remedy when no checkpoint lies before the segment; `later`: the checkpoints after it."""
    whole = f"--steps 0:{stop} to begin from the initial state"
    if not later:
        return f"there are none behind it either; give {whole}"
    listed = ", ".join(str(step) for step in later)
    there = f"checkpoint{'s' * (len(later) > 1)} of step{'s' * (len(later) > 1)} {listed}"
    ends = [step for step in (*later[1:], done) if step > later[0]]
    begin = f"--steps {later[0]}:{ends[0]}, or " if ends else ""
    return f"{there} {'are' if len(later) > 1 else 'is'} there; give {begin}{whole}"


def _final_of(run: Path, stop: int) -> dict[str, dict[str, str]]:
    """{"final": {tensor: SHA-256}} where the run ended with that step in order, else {}."""
    if not (run / "final" / MANIFEST).exists() or _final_step(run) != stop:
        return {}
    return {"final": read_final(run / "final").tensors}


def _steps_done(run: Path, losses: Mapping[int, object]) -> int:
    """How many steps the run has done: by its final state, otherwise by its records."""
    if (run / "final" / MANIFEST).exists():
        return _final_step(run)
    if not losses:
        raise InputError(
            f"{run / 'metrics.jsonl'}: no step was done yet; there is nothing to check"
        )
    return max(losses) + 1


def _final_step(run: Path) -> int:
    path = run / "final" / MANIFEST
    try:
        return int(json.loads(read_text(path))["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: {error}; the file is damaged") from error


def _whole_lines(path: Path) -> str:
    """The complete lines of a file that may still grow: a line without a newline is left out."""
    text = read_text(path)
    return text[: text.rfind("\n") + 1]


def main(arguments: list[str], *, checkpoints: CheckpointsOf) -> int:
    """The command; see the top of the file."""
    try:
        run, first, stop = Path(arguments[0]), *map(int, arguments[1:])
    except (IndexError, ValueError):
        sys.stderr.write("usage: python -m bamboo.runs.segment RUN_DIR A B\n")
        return InputError.exit_code

    return answer_equal(
        lambda: verify_segment(run, first, stop, tell_progress, checkpoints=checkpoints)
    )
