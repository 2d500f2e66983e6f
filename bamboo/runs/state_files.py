"""The files with the state of a run: at its end, or in one of its checkpoints.

Rule: they are whole, and compared with what was written. In an account they are fetched first.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bamboo import wiring
from bamboo.checkpoint.catalogue import described, examine, steps
from bamboo.checkpoint.final import read_final
from bamboo.checkpoint.manifest import Manifest
from bamboo.errors import BambooError
from bamboo.ports import ObjectStore
from bamboo.runs import final_state
from bamboo.runs.run_folder import RunFolder, job_of
from bamboo.runs.run_status import strategy_of


class NoState(BambooError):
    """A run has no such state."""

    def __init__(self, problem: str, others: Sequence[int]) -> None:
        super().__init__(problem)
        self.problem = problem
        self.steps = tuple(others)
        """The steps whose checkpoints are complete, the oldest first, without the one asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFiles:
    """Where the tensors of a state lie, named as in the final files."""

    files: tuple[Path, ...]
    step: int
    """Completed steps."""


@contextmanager
def state_files(folder: RunFolder, step: int | None) -> Iterator[StateFiles]:
    """The files of the state after `step` steps, None: of that at its end, until the block ends.
    Raises NoState, StorageUnavailable, and InputError for a damaged folder."""
    if why := final_state.wrong_with_final(folder, step=step):
        objects = wiring.checkpoints_of(folder, job_of(folder))
        if step is None:
            there = _complete(folder, objects)
            raise NoState(f"run {folder.id} has no final state: {why}", there)
        manifest = _checkpoint(folder, objects, step)
        with TemporaryDirectory(prefix="bamboo-") as scratch:
            files = []
            for number, shard in enumerate(manifest.shards):
                path = Path(scratch) / f"{number}.safetensors"
                if not objects.fetch(shard.name, path):
                    others = [other for other in _complete(folder, objects) if other != step]
                    raise NoState(f"{shard.name} of run {folder.id} is gone", others)
                files.append(path)
            yield StateFiles(files=tuple(files), step=step)
        return
    final = read_final(folder.final)
    found = sorted(folder.final.glob("stage-*.safetensors"))
    yield StateFiles(files=tuple(found), step=final.step)


def _checkpoint(folder: RunFolder, objects: ObjectStore, step: int) -> Manifest:
    others = [other for other in _complete(folder, objects) if other != step]
    if step not in steps(objects):
        raise NoState(f"run {folder.id} has no checkpoint of step {step}", others)
    hashes = strategy_of(folder).semantics.hash_at
    manifest, why = examine(objects, step, run=folder.id, semantic_hash=hashes)
    if manifest is None or why:
        raise NoState(f"the checkpoint of step {step} of run {folder.id} {why}", others)
    return manifest


def _complete(folder: RunFolder, objects: ObjectStore) -> list[int]:
    """The steps of the complete checkpoints, by their manifests alone, the oldest first."""
    found = steps(objects)
    if not found:
        return []
    about: dict[str, Any] = {
        "run": folder.id,
        "semantic_hash": strategy_of(folder).semantics.hash_at,
    }
    return sorted(step for step in found if not described(objects, step, **about)[1])
