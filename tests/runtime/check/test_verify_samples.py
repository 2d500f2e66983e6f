"""`verify --samples` on the files of a run: what they say is held against job and data."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bamboo.config.load import job_to_json
from bamboo.config.resolve import batch_shape, semantics
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset, load_data
from bamboo.errors import InputError
from bamboo.runtime.check.verify_samples import verify_samples
from bamboo.telemetry.samples import SamplesRecord, used
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Strategy
from tests.attested import write_attested
from tests.jobs import tiny_job
from tests.warm import ran

STEPS = 200
"""More than a data epoch of the tiny text."""


def write_facts(run: Path, job: JobConfig, *, steps: int) -> Dataset:
    """What a run's folder says of job, data and committed steps; its data."""
    data = load_data(job)
    (run / "final").mkdir(parents=True, exist_ok=True)
    body = json.loads(job_to_json(job)) | {"samples": data.samples}
    (run / "resolved.json").write_text(json.dumps(body), encoding="utf-8")
    strategy = Strategy(
        semantics=semantics(job, data_digest=data.digest),
        placement=Placement(cut=(0, 2, 4), grid=Grid(pipelines=1, stages=2), redundancy="stash"),
    )
    (run / "strategy.json").write_text(strategy.to_json(), encoding="utf-8")
    write_attested(run, job)
    (run / "final" / "manifest.json").write_text(json.dumps({"step": steps}), encoding="utf-8")
    return data


def write_run(folder: Path, steps: int = STEPS) -> Path:
    """The files of a run that ended after `steps` steps, as far as this check reads them."""
    job, run = tiny_job(folder, [f"train.steps={STEPS}"]), folder / "run"
    data = write_facts(run, job, steps=steps)
    whole = range(batch_shape(job).total)
    records = [
        SamplesRecord.of_step(step, used(whole, partial(data.sample_indices, step)))
        for step in range(steps)
    ]
    _write(run, records)
    return run


def _write(run: Path, records: list[SamplesRecord]) -> None:
    text = "".join(r.to_json() + "\n" for r in records)
    (run / "samples.jsonl").write_text(text, encoding="utf-8")


def _records(run: Path) -> list[SamplesRecord]:
    return [SamplesRecord.from_json(x) for x in (run / "samples.jsonl").read_text().splitlines()]


def check(run: Path) -> dict[str, Any]:
    return verify_samples(run, lambda step, steps: None)


def test_a_good_run(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    told: list[tuple[int, int]] = []
    body = verify_samples(run, lambda step, steps: told.append((step, steps)))
    each = load_data(tiny_job(tmp_path)).samples
    assert body == {
        "schema_version": 1,
        "equal": True,
        "steps": STEPS,
        "microbatches": 4 * STEPS,
        "samples": 8 * STEPS,
        "epochs": 8 * STEPS // each,
        "samples_of_last_epoch": 8 * STEPS % each,
        "samples_in_epoch": each,
        "undone_steps": 0,
        "first_difference": None,
    }
    assert body["epochs"] >= 1
    assert told == [(STEPS, STEPS)]


def test_a_dropped_microbatch_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    records = _records(run)
    records[11] = SamplesRecord(step=11, microbatches=(0, 1, 3), digest=records[11].digest)
    _write(run, records)
    body = check(run)
    assert body["equal"] is False
    first = body["first_difference"]
    assert (first["step"], first["kind"], first["microbatch"]) == (11, "missing", 2)
    assert first["sentence"].endswith("is missing: recorded 0-1,3 of 0-3")


def test_another_drawing_of_the_order_is_found(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    other = load_data(tiny_job(tmp_path, ["train.seed=7"]))
    records = _records(run)
    records[0] = SamplesRecord.of_step(0, used(range(4), lambda m: other.sample_indices(0, m)))
    _write(run, records)
    first = check(run)["first_difference"]
    assert (first["step"], first["kind"]) == (0, "other samples")


def test_without_a_final_state_the_receipt_says_how_far_it_came(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "final" / "manifest.json").unlink()
    with pytest.raises(InputError, match="name the folder of a run that has ended"):
        check(run)
    (run / "receipt.json").write_text('{"step": 30}', encoding="utf-8")
    body = check(run)
    assert (body["equal"], body["steps"], body["undone_steps"]) == (True, 30, STEPS - 30)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("final/manifest.json", '{"step": 0}', "finished no step"),
        ("final/manifest.json", "{}", "is damaged"),
        ("strategy.json", "{}", "is damaged"),
        ("samples.jsonl", None, "there is none"),
        ("resolved.json", None, "name the folder of a run"),
        ("resolved.json", "{}", "holds no job|another schema"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, name: str, change: str | None, message: str
) -> None:
    run = write_run(tmp_path)
    if change is None:
        (run / name).unlink()
    else:
        (run / name).write_text(change, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        check(run)


def test_no_data_are_needed(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (tmp_path / "text.txt").unlink()
    assert check(run)["equal"] is True
    body = json.loads((run / "resolved.json").read_text(encoding="utf-8"))
    del body["samples"]
    (run / "resolved.json").write_text(json.dumps(body), encoding="utf-8")
    with pytest.raises(InputError, match="does not say how many samples"):
        check(run)


def test_another_job_than_the_runs_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    other = tiny_job(tmp_path, [f"train.steps={STEPS}", "train.seed=9"])
    (run / "resolved.json").write_text(job_to_json(other), encoding="utf-8")
    with pytest.raises(InputError, match=r"seed is \(8, 2, 1, 9\) here and \(8, 2, 1, "):
        check(run)


def test_the_command(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    done = ran("bamboo.runtime.check.verify_samples", str(run))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["equal"] is True
    assert json.loads(done.stderr.splitlines()[-1]) == {"step": STEPS, "steps": STEPS}
