"""A damaged file in a run's folder: named with a remedy, and no matter to any other run."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bamboo.config.load import job_to_json
from bamboo.config.resolve import resolve
from bamboo.errors import InputError
from bamboo.ids import run_id
from cli import main, runs
from tests.cli.world import START_S, job

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    return tmp_path


def folder_of(home: Path, name: str, *, started_s: float = START_S) -> runs.RunFolder:
    folder = runs.create(home, run_id(name))
    body = json.loads(job_to_json(resolve(job())))["job"]
    runs.write_json(folder.resolved, {"run": name, "started_s": started_s, "job": body})
    return folder


def truncate(path: Path) -> None:
    path.write_text(path.read_text()[:-20])


def fill_with_bytes(path: Path) -> None:
    path.write_bytes(bytes(range(128, 256)))


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def empty(path: Path) -> None:
    path.write_text('{"schema_version": 1}')


def null_fields(path: Path) -> None:
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**dict.fromkeys(body), "schema_version": 1}))


def be_absurd(path: Path) -> None:
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "started_s": 1e308, "ended_s": 10**400}))


def nest_without_end(path: Path) -> None:
    path.write_text("[" * 100_000)


DAMAGES = (
    truncate, fill_with_bytes, make_directory, empty, null_fields, be_absurd, nest_without_end,
)  # fmt: skip


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that this command line fails with."""
    capsys.readouterr()
    assert main.run(arguments) == 2, arguments
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_listed_as_such_and_the_others_are_as_ever(
    home: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    folder_of(home, "a1")
    bad = folder_of(home, "z-1")
    damage(bad.resolved)
    assert main.run(["list", "--json"]) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["a1"]["phase"], rows["a1"]["damage"]) == ("lost", None)
    assert (rows["z-1"]["phase"], rows["z-1"]["started"]) == ("damaged", None)
    assert str(bad.resolved) in rows["z-1"]["damage"]
    assert main.run(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"z-1: {bad.resolved} ")
    for name in ("a1", "a"):
        assert main.run(["status", name]) == 0
    line = error_of(["status", "z-1"], capsys)
    assert str(bad.resolved) in line
    assert "put the original back, or move the folder of this run elsewhere" in line


def test_last_is_no_older_run_when_the_newest_may_be_damaged(home: Path) -> None:
    folder_of(home, "a1", started_s=1000.0)
    bad = folder_of(home, "z-1", started_s=2000.0)
    truncate(bad.resolved)
    assert runs.find(home, "last").id == "z-1"
    os.utime(bad.resolved, (999.0, 999.0))
    assert runs.find(home, "last").id == "a1"


def test_a_field_that_is_missing_deep_inside_is_named(home: Path) -> None:
    folder = folder_of(home, "a")
    runs.write_json(folder.receipt, {"bill": {"usd": 1.0}, "nodes": [{"id": "i-0.0"}]})
    body = folder.read_json(folder.receipt)
    assert body["bill"]["usd"] == 1.0
    with pytest.raises(InputError, match=r"receipt\.json is damaged: it lacks bill\.modelled; put"):
        body["bill"]["modelled"]
    with pytest.raises(InputError, match=r"it lacks nodes\[\]\.zone; put"):
        body["nodes"][0]["zone"]
    shutil.copyfile(folder.receipt, folder.path / "other.json")
    runs.write_json(folder.receipt, {"nodes": [{"id": "i-0.0"}, None]})
    with pytest.raises(InputError, match=r"nodes\[\] = null is not an object; put"):
        folder.read_json(folder.receipt)
