"""`bamboo resume --steps`: what it asks for, what it refuses, and the state it goes on from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.checkpoint.catalogue import examine
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.manifest import folder_of
from bamboo.checkpoint.stopped import keep_final
from bamboo.config.load import job_from_json, job_to_json
from bamboo.config.tree import JobConfig, Segment
from bamboo.controller import longer, resuming
from bamboo.controller.longer import expected, is_further, stages_to_keep, steps_done
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.runs.run_folder import RunFolder, write_json
from bamboo.topology.strategy import Strategy
from tests.runtime.check.kept_run import STEPS, flip, shard_of, write_run

pytestmark = pytest.mark.timeout(60)
LAYERS = (0, 1, 2, 3)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that is done, with a checkpoint of its last step beside its final state."""
    folder = RunFolder(id=RunId("run"), path=write_run(tmp_path))
    write_json(folder.receipt, {"step": STEPS, "outcome": "done"})
    return folder


def job_in(folder: RunFolder) -> JobConfig:
    return job_from_json(folder.resolved.read_text())


def lengthened(folder: RunFolder, steps: int, *overrides: str) -> JobConfig:
    return longer.longer(folder, job_in(folder), overrides, steps=steps, done=steps_done(folder))


def strategy_in(folder: RunFolder) -> Strategy:
    return Strategy.from_json(folder.strategy.read_text())


def to_keep(folder: RunFolder) -> int:
    semantics = expected(strategy_in(folder).semantics, lengthened(folder, 2 * STEPS))
    return stages_to_keep(
        folder,
        DirectoryStore(folder.path / "checkpoints"),
        done=STEPS,
        semantic_hash=semantics.hash_at,
        layers=LAYERS,
    )


def test_what_is_done_is_closed_and_the_rest_has_a_learning_rate_of_its_own(
    folder: RunFolder,
) -> None:
    job = lengthened(folder, 20, "train.learning_rate=0.5", "cluster.stages=3")
    own = {"learning_rate": 1e-2, "warmup_steps": 2, "final_learning_rate": 1e-4}
    assert job.segments == (Segment(to_step=STEPS, steps=STEPS, **own),)
    assert (job.train.steps, job.train.learning_rate, job.cluster.stages) == (20, 0.5, 3)
    # Of this one too few steps are done: it is closed before its end.
    write_json(folder.receipt, {"step": 15, "outcome": "stopped"})
    again = longer.longer(folder, job, (), steps=40, done=15)
    assert again.segments[0] == job.segments[0]
    assert again.segments[1:] == (Segment(to_step=15, steps=20, **own | {"learning_rate": 0.5}),)
    assert (again.train.steps, again.train.learning_rate) == (40, 0.5)


def test_a_segment_in_which_no_step_was_done_is_planned_anew(folder: RunFolder) -> None:
    job = lengthened(folder, 20, "train.learning_rate=0.5")
    again = longer.longer(folder, job, ("train.learning_rate=0.25",), steps=40, done=STEPS)
    assert again.segments == job.segments
    assert (again.train.steps, again.train.learning_rate) == (40, 0.25)


def test_a_run_that_went_back_before_a_segment_goes_on_in_the_one_that_it_is_in(
    folder: RunFolder,
) -> None:
    """Its checkpoint of step 12 was damaged, so it went on from an older one, to step 10."""
    job = lengthened(folder, 20, "train.learning_rate=0.5")
    again = longer.longer(folder, job, ("train.learning_rate=0.25",), steps=40, done=10)
    assert again.segments == (replace(job.segments[0], to_step=10),)
    assert job_from_json(job_to_json(again)).segments == again.segments
    further = replace(job, segments=(*job.segments, replace(job.segments[0], to_step=15)))
    assert longer.longer(folder, further, (), steps=40, done=STEPS).segments == job.segments


def test_what_is_left_of_the_run_is_no_further_segment(folder: RunFolder) -> None:
    job = job_in(folder)
    assert not is_further(job, ("budget.max_usd=1",), steps=STEPS, done=7)
    assert is_further(job, (), steps=STEPS, done=STEPS)
    assert is_further(job, (), steps=STEPS - 1, done=7)
    assert is_further(job, ("train.warmup_steps=0",), steps=STEPS, done=7)


@pytest.mark.parametrize(
    ("steps", "overrides", "done", "says"),
    [
        (12, (), 12, "--steps 12: run run has done 12 steps; give the new total, 13 or more"),
        (1, (), 12, "--steps 1: run run has done 12 steps; give the new total, 13 or more"),
        (-1, (), 12, "--steps -1: run run has done 12 steps"),
        (20, (), 0, "has done no step .* launch the job again with --set train.steps=20"),
        (20, ("train.steps=30",), 12, "--set train.steps: --steps 20 says that; leave one of them"),
        (20, ("train.learning_rate=-1",), 12, "train.learning_rate"),
        (2_000_000_000, (), 12, "train.steps"),
    ],
)
def test_what_makes_no_segment_is_refused(
    folder: RunFolder, steps: int, overrides: tuple[str, ...], done: int, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        longer.longer(folder, job_in(folder), overrides, steps=steps, done=done)


@pytest.mark.parametrize("key", ["train.batch=16", "train.seed=2", "train.weight_decay=0.2"])
def test_any_other_key_is_refused_by_its_name(folder: RunFolder, key: str) -> None:
    job = lengthened(folder, 20, "train.learning_rate=0.5", key)
    ours = strategy_in(folder).semantics
    theirs = replace(expected(ours, job), **_changed(ours, job))
    asked = resuming._Asked(job=job, semantics=expected(ours, job), further=True, done=STEPS)
    with pytest.raises(InputError, match=f"{key.partition('=')[0]} was .* the learning rate: "):
        resuming._refuse_another_run(folder, asked, theirs)
    resuming._refuse_another_run(folder, asked, asked.semantics)


def _changed(ours: object, job: JobConfig) -> dict[str, object]:
    """What the plan of that job has in place of the run's."""
    optimizer = {**ours.optimizer, "weight_decay": job.train.weight_decay}  # type: ignore[attr-defined]
    optimizer["learning_rate"] = job.train.learning_rate
    return {"batch": job.train.batch, "seed": job.train.seed, "optimizer": optimizer}


def test_it_goes_on_from_the_checkpoint_of_the_last_step(folder: RunFolder) -> None:
    assert to_keep(folder) == 0


def test_else_from_the_final_state_which_becomes_that_checkpoint(folder: RunFolder) -> None:
    flip(shard_of(folder.path, STEPS), at=-5)
    assert to_keep(folder) == 2
    store = DirectoryStore(folder.path / "checkpoints")
    semantics = expected(strategy_in(folder).semantics, lengthened(folder, 2 * STEPS))
    whose = {"run": folder.id, "semantic_hash": semantics.hash_at}
    kept = keep_final(
        store, folder.final, stages=2, generation=0, layers=LAYERS, now_s=1.0, **whose
    )
    assert kept == STEPS
    assert examine(store, STEPS, layers=LAYERS, **whose)[1] == ""
    assert examine(store, 3, layers=LAYERS, **whose)[1] == "", "the older ones are good as before"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("gone", r"final.manifest.json: No such file or directory"),
        ("step", r"final is of step 13"),
        ("bit", r"stage-01.safetensors is damaged"),
    ],
)
def test_a_state_that_is_not_kept_is_said_before_anything_is_started(
    folder: RunFolder, damage: str, says: str
) -> None:
    (folder.path / "checkpoints" / folder_of(STEPS) / "manifest.json").unlink()
    match damage:
        case "gone":
            folder.final_manifest.unlink()
        case "bit":
            flip(folder.final / "stage-01.safetensors")
        case "step":
            manifest = json.loads(folder.final_manifest.read_text())
            folder.final_manifest.write_text(json.dumps(manifest | {"step": STEPS + 1}))
    with pytest.raises(InputError, match=f"after step 12 is not kept.*{says}.*is torn"):
        to_keep(folder)
