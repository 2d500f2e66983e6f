"""`bamboo export`, `eval` and `sample`: which state they take, what they print and refuse."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from bamboo import api, wiring
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import stage_file
from bamboo.checkpoint.run_files import put_stage
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.runs.run_folder import RunFolder, write_json
from bamboo.runtime.after.program import done
from cli.main import run as bamboo
from tests.full_disk import files_up_to
from tests.runtime.check.kept_run import STEPS, corrupted, flip, torn, write_run
from tests.study.on_paper import body_of

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("warm_torch")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run of 12 steps that is done, with a checkpoint every third."""
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = RunFolder(id=RunId("run"), path=write_run(tmp_path))
    body = json.loads(made.resolved.read_text()) | {"started_s": 1.0}
    write_json(made.resolved, body)
    write_json(made.receipt, {"step": STEPS, "outcome": "done"})
    return made


def test_each_takes_the_end_or_a_checkpoint(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    body = body_of(capsys, "export", "run", "--to", "out", "--json")
    assert (body["step"], body["files"], body["format"]) == (
        STEPS,
        ["model.safetensors"],
        "safetensors",
    )
    assert Path("out").stat().st_mode & 0o777 == 0o777 & ~_umask()
    assert Path("out/model.safetensors").stat().st_mode & 0o777 == 0o666 & ~_umask()
    at_end = load_file("out/model.safetensors")
    assert body["parameters"] == sum(tensor.numel() for tensor in at_end.values())
    final = api.open_run("run").final_state()
    assert all((final[f"param/{name}"] == tensor.numpy()).all() for name, tensor in at_end.items())
    assert bamboo(["export", "run", "--to", "six", "--step", "6"]) == 0
    assert "of run run after step 6: six" in capsys.readouterr().out
    at_six = load_file("six/model.safetensors")
    assert at_six.keys() == at_end.keys()
    assert not at_six["0.tokens.weight"].equal(at_end["0.tokens.weight"])
    losses = [
        api.open_run("run").evaluate("text.txt", samples=20, step=step)["loss"]
        for step in (3, None)
    ]
    assert losses[0] > losses[1]
    assert bamboo(["eval", "run", "--source", "text.txt", "--samples", "20"]) == 0
    assert f"loss {losses[1]:.6f} per token; 20 samples, on cpu" in capsys.readouterr().out
    said = [
        api.open_run("run").sample("the quick", length=9, step=step)["text"] for step in (3, 12)
    ]
    assert said[0] != said[1]
    assert bamboo(["sample", "run", "--prompt", "the quick", "--length", "9"]) == 0
    assert capsys.readouterr().out == said[1] + "\n"


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert bamboo(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_a_state_that_is_not_there_names_those_that_are(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "unknown run 'none'" in refused(capsys, "export", "none", "--to", "out")
    torn(folder.path, 3)
    line = refused(capsys, "eval", "run", "--source", "text.txt", "--step", "7")
    assert "no checkpoint of step 7; name a step that has a checkpoint: 6, 9, 12" in line
    corrupted(folder.path, 6)
    line = refused(capsys, "sample", "run", "--prompt", "a", "--step", "6")
    assert "is not what was written; name a step that has a checkpoint: 9, 12" in line
    flip(folder.final / "stage-01.safetensors")
    line = refused(capsys, "export", "run", "--to", "out")
    assert "stage-01.safetensors is damaged; name a step that has a checkpoint: 6, 9, 12" in line
    for name in ("final", "checkpoints"):
        (folder.path / name).rename(folder.path / f"no-{name}")
    line = refused(capsys, "export", "run", "--to", "out")
    assert "has no final state" in line
    assert "it has no checkpoint, either; put its files back" in line
    folder.receipt.unlink()
    assert "either; wait for its end" in refused(capsys, "export", "run", "--to", "out")
    assert not Path("out").exists()


def test_what_cannot_be_asked_for(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    export, sample = ("export", "run", "--to"), ("sample", "run", "--prompt", "a")
    assert "is there already, with" in refused(capsys, *export, ".")
    assert "is there already, and no folder" in refused(capsys, *export, "text.txt")
    assert "there is no folder" in refused(capsys, *export, "nowhere/out")
    Path("link").symlink_to(".")
    assert "is a link, which is not followed" in refused(capsys, *export, "link")
    line = refused(capsys, "eval", "run", "--source", "none.txt")
    assert "source none.txt: there is no file" in line
    assert "job.toml has no [eval], and gpt has no eval_data" in refused(capsys, "eval", "run")
    assert "give 1 to 1,000,000 tokens" in refused(capsys, *sample, "--length", "0")
    assert "give 0 for the likeliest token" in refused(capsys, *sample, "--temperature", "-1")
    assert "is no UTF-8 text; correct it" in refused(capsys, *sample, "--prompt", "\udcff")
    assert "give a whole number from 0" in refused(capsys, *sample, "--seed", "-1")
    assert "tokenizer none.json: there is no" in refused(
        capsys, *sample, "--tokenizer", "none.json"
    )


@pytest.mark.parametrize("form", ["safetensors", "dcp"])
def test_a_full_disk_leaves_nothing(
    folder: RunFolder, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_after(
        what: str, run: Path, files: Sequence[Path], options: Mapping[str, Any], **_: Any
    ) -> dict[str, Any]:
        asked = {"do": what, "run": str(run), "files": files, "options": options}
        with files_up_to(4096):
            return done(asked)

    monkeypatch.setattr(wiring, "run_after", run_after)
    before = {path.name for path in Path().iterdir()}
    with pytest.raises(InputError, match=r"cannot be written: .*; make room there"):
        api.open_run("run").export("out", format=form)
    assert {path.name for path in Path().iterdir()} == before


def test_the_state_of_a_run_in_an_account_is_fetched(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.loads(folder.resolved.read_text())
    body["job"]["cloud"] |= {"provider": "ec2", "bucket": "bucket"}
    body["job"]["cluster"] |= {"transport": "tcp"}
    write_json(folder.resolved, body)
    write_json(folder.receipt, {"step": STEPS, "outcome": "done", "stages": 2})
    there = DirectoryStore(tmp_path / "there")
    for stage in (0, 1):
        put_stage(there, stage, load_file(folder.final / stage_file(stage)), STEPS)
    shutil.rmtree(folder.final)
    (folder.path / "checkpoints").rename(tmp_path / "there" / "checkpoints")

    def bucket(url: str, *, region: str = "") -> DirectoryStore:
        below = url.removeprefix("s3://bucket/runs/run").lstrip("/")
        return DirectoryStore(tmp_path / "there" / below)

    monkeypatch.setattr(wiring, "bucket", bucket)
    assert api.open_run("run").export("out")["step"] == STEPS
    assert api.open_run("run").export("six", step=6)["step"] == 6
