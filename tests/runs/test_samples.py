"""`bamboo verify --samples`: the launcher keeps what was said, the command checks and says it."""

import json
from pathlib import Path
from typing import Any

import pytest

from bamboo.ids import run_id
from bamboo.runs import run_folder
from bamboo.runs.books import FileBooks
from bamboo.telemetry.samples import SamplesRecord, read_samples
from cli import main
from cli.views.verify import samples_text
from tests.controller.world import World, finished, job, joined, left, step
from tests.runtime.check.test_verify_samples import write_run

pytestmark = pytest.mark.usefixtures("warm_torch")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> run_folder.RunFolder:
    """A run `run` that has ended in order."""
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    written = write_run(tmp_path, steps=70)
    folder = run_folder.RunFolder(id=run_id(written.name), path=written)
    resolved = json.loads(folder.resolved.read_text())
    run_folder.write_json(
        folder.resolved, {"started_s": 1.0} | {name: resolved[name] for name in ("job", "samples")}
    )
    run_folder.write_json(folder.receipt, {"outcome": "done", "step": 70})
    return folder


def test_each_sample_once(folder: run_folder.RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["verify", "--samples", "run", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["run"], body["equal"], body["first_difference"]) == ("run", True, None)
    assert (body["steps"], body["samples"]) == (70, 560)
    assert body["epochs"] * body["samples_in_epoch"] + body["samples_of_last_epoch"] == 560
    assert main.run(["verify", "--samples", "last"]) == 0
    assert capsys.readouterr().out.startswith("run: 70 steps used 560 samples, each exactly once")


def test_a_difference_is_named_and_exits_5(
    folder: run_folder.RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    records = read_samples(folder.samples)
    short = SamplesRecord(step=9, microbatches=(0, 2, 3), digest=records[9].digest)
    lines = [r.to_json() for r in (*records[:9], short, *records[10:])]
    folder.samples.write_text("\n".join(lines) + "\n")
    assert main.run(["verify", "--samples", "run"]) == 5
    told = capsys.readouterr()
    assert told.out.startswith("run: step 9: microbatch 1 (samples ")
    assert told.out.endswith(" is missing: recorded 0,2-3 of 0-3\n")
    assert told.err.startswith("error: run run is not what it must be: step 9: microbatch 1 (")
    assert main.run(["verify", "--samples", "run", "--json"]) == 5
    first = json.loads(capsys.readouterr().out)["first_difference"]
    assert (first["step"], first["kind"], first["microbatch"]) == (9, "missing", 1)


def test_a_run_that_goes_on_and_two_checks_at_once_are_refused(
    folder: run_folder.RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.receipt.unlink()
    assert main.run(["verify", "--samples", "run"]) == 2
    assert "verify works once a run has ended" in capsys.readouterr().err
    assert main.run(["verify", "--samples", "--decisions", "run"]) == 2
    assert "one at a time" in capsys.readouterr().err


def with_use(index: int, microbatches: str = "0-7", digest: str = "ab") -> dict[str, Any]:
    return step(index) | {"used": {"microbatches": microbatches, "samples": digest}}


def test_the_launcher_keeps_every_word_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a second one of the same loss, which the metrics leave out: the check judges it."""
    monkeypatch.setattr("bamboo.controller.launcher.TURN_S", 0.0)
    said = [with_use(0), with_use(1), with_use(1, "0-6", "cd"), with_use(0), with_use(2)]
    world = World(job(), [joined(), [*said, finished(2, 0, 1, 2, 3)], left(0, 1, 2, 3)])
    world.launcher.run()
    assert [(r.step, len(r.microbatches), r.digest) for r in world.books.used] == [
        (0, 8, "ab"), (1, 8, "ab"), (1, 7, "cd"), (0, 8, "ab"), (2, 8, "ab"),
    ]  # fmt: skip
    assert [m.step for m in world.books.metrics] == [0, 1, 2]


def test_the_books_append_it_to_the_runs_file(folder: run_folder.RunFolder) -> None:
    folder.samples.unlink()
    folder.events.mkdir()
    record = SamplesRecord(step=0, microbatches=(0, 1), digest="ab")
    for _ in range(2):
        books = FileBooks(folder)
        books.samples(record)
        books.close()
    assert read_samples(folder.samples) == [record, record]


@pytest.mark.parametrize(
    ("steps", "undone", "text"),
    [
        (10, 0, "10 steps used 80 samples, each exactly once in its data epoch: 2 whole data "
         "epochs of 40"),
        (11, 0, "11 steps used 88 samples, each exactly once in its data epoch: 2 whole data "
         "epochs of 40 and 8 of the next"),
        (1, 2, "1 step used 8 samples, each exactly once in its data epoch: 8 of its 40\n"
         "  2 steps recorded beyond them were taken back"),
    ],
)  # fmt: skip
def test_the_text(steps: int, undone: int, text: str) -> None:
    body = {
        "equal": True,
        "steps": steps,
        "samples": 8 * steps,
        "epochs": 8 * steps // 40,
        "samples_in_epoch": 40,
        "samples_of_last_epoch": 8 * steps % 40,
        "undone_steps": undone,
    }
    assert samples_text("r", body) == f"r: {text}"
