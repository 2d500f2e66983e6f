"""`bamboo verify --steps A:B`: what is asked for, what is said, and the exit status."""

import json
from pathlib import Path
from typing import Any

import pytest

from bamboo.ids import run_id
from bamboo.runs import run_folder
from cli import main
from cli.views.verify import segment_text
from tests.runtime.check.kept_run import flip, nudge_loss, shard_of, write_run

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("warm_torch")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> run_folder.RunFolder:
    """A run `run` of 12 steps with a checkpoint every third."""
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    folder = run_folder.RunFolder(id=run_id("run"), path=write_run(tmp_path))
    resolved = json.loads(folder.resolved.read_text())
    run_folder.write_json(folder.resolved, {"started_s": 1.0, "job": resolved["job"]})
    return folder


def test_a_segment_of_a_run(
    folder: run_folder.RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(shard_of(folder.path, 6), at=-5)
    assert main.run(["verify", "run", "--steps", "7:9", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["equal"], body["first_difference"]) == (True, None)
    assert (body["from_checkpoint"], body["steps"], body["segment"]) == (3, 2, [7, 9])
    assert main.run(["verify", "last", "--steps", "7:9"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("run: steps 7 to 8 bitwise equal to a calm run of the same semantics (")
    assert "passed over: the checkpoint of step 6 is corrupted: " in said


def test_a_difference_is_named_and_exits_5(
    folder: run_folder.RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    nudge_loss(folder.path, 4)
    assert main.run(["verify", "run", "--steps", "3:6"]) == 5
    told = capsys.readouterr()
    assert told.out.startswith("run: differs first in step 4, loss\n")
    assert told.err.startswith("error: run run is not what it must be: {'step': 4, ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--steps", "6"], "--steps '6' is no segment; give A:B, say 40:60 for steps 40 to 59"),
        (["--steps", "-1:6"], "--steps '-1:6' is no segment"),
        (["--steps", "a:b"], "--steps 'a:b' is no segment"),
        (["--steps", ""], "--steps '' is no segment"),
        (["--steps", "3:6", "--samples"], "one at a time"),
        (["--steps", "3:6", "--decisions"], "one at a time"),
    ],
)
def test_wrong_input_is_refused(
    folder: run_folder.RunFolder,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    assert main.run(["verify", "run", *arguments]) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert not told.out


EQUAL: dict[str, Any] = {
    "equal": True,
    "first_difference": None,
    "semantic_hash": "ab",
    "segment": [40, 60],
    "from_checkpoint": 40,
    "steps": 20,
    "compared_with": ["checkpoint", "final"],
    "tensors": 156,
    "passed_over": [],
}
CALM = "bitwise equal to a calm run of the same semantics (ab) from"
DIFFERS = {"step": 59, "calm": "aa", "run": "bb"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, f"r: steps 40 to 59 {CALM} the checkpoint of step 40 on: 20 losses and 156 tensors of "
         "the checkpoint of step 60 and the final state"),
        ({"segment": [0, 1], "steps": 1, "from_checkpoint": 0, "compared_with": [], "tensors": 0},
         f"r: step 0 {CALM} the initial state on: 1 loss; nothing was kept of step 1 to compare "
         "its tensors with"),
        ({"equal": False, "first_difference": DIFFERS | {"tensor": "loss"}},
         "r: differs first in step 59, loss\n"
         "  calm run from the checkpoint of step 40 on: aa\n  this run: bb"),
        ({"equal": False, "first_difference": DIFFERS | {"tensor": "param/1.w", "of": "final"},
          "passed_over": ["the checkpoint of step 50 is torn"]},
         "r: differs first in step 59, param/1.w of the final state\n"
         "  calm run from the checkpoint of step 40 on: aa\n  this run: bb\n"
         "  passed over: the checkpoint of step 50 is torn"),
    ],
)  # fmt: skip
def test_the_text(body: dict[str, Any], text: str) -> None:
    assert segment_text("r", EQUAL | body) == text
