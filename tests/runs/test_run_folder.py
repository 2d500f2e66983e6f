"""Run folders: claimed once, found by id, prefix or `last`."""

import os
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bamboo.errors import BooksUnwritable, InputError, RunExists
from bamboo.ids import run_id
from bamboo.runs import run_folder
from cli import main
from tests.full_disk import files_up_to


def make(base: Path, name: str, started_s: float) -> run_folder.RunFolder:
    folder = run_folder.create(base, run_id(name))
    run_folder.write_json(folder.resolved, {"started_s": started_s})
    return folder


def test_an_id_is_granted_once(tmp_path: Path) -> None:
    run_folder.create(tmp_path / "deep" / "home", run_id("a"))
    with pytest.raises(RunExists, match="run a exists already"):
        run_folder.create(tmp_path / "deep" / "home", run_id("a"))


def test_a_home_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file" / "home", tmp_path / "file"):
        with pytest.raises(InputError, match=r"cannot make .*; set BAMBOO_HOME to a folder"):
            run_folder.create(home, run_id("a"))


def test_a_home_that_cannot_be_looked_for_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", "a" * 5000)
    with pytest.raises(InputError, match=r"cannot be reached: File name too long; set BAMBOO_HOME"):
        run_folder.home()
    monkeypatch.delenv("BAMBOO_HOME")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InputError, match=r"the folder of runs \./runs cannot be reached: No such"):
        run_folder.home()


def test_find(tmp_path: Path) -> None:
    make(tmp_path, "gpt-1", 10.0)
    make(tmp_path, "gpt-12", 30.0)
    make(tmp_path, "bert", 20.0)
    assert run_folder.find(tmp_path, "last").id == "gpt-12"
    assert run_folder.find(tmp_path, "gpt-1").id == "gpt-1"
    assert run_folder.find(tmp_path, "b").id == "bert"
    assert [f.id for f in run_folder.all_runs(tmp_path)] == ["gpt-1", "bert", "gpt-12"]
    with pytest.raises(InputError, match="not unique: gpt-1, gpt-12"):
        run_folder.find(tmp_path, "gpt")
    for missing in ("x", "", "../gpt-1"):
        with pytest.raises(InputError, match="unknown run"):
            run_folder.find(tmp_path, missing)


def test_no_run_can_be_called_what_the_newest_is_called() -> None:
    with pytest.raises(InputError, match="'last' means the newest run, whichever it is; take"):
        run_id("last")
    assert run_id("last-1") == "last-1"


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no runs"):
        run_folder.find(tmp_path / "none", "last")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-local.toml", "gpt-local-1120-2310-"),
        ("Ä ö__x.toml", "x-1120-2310-"),
        ("___.toml", "run-1120-2310-"),
        ("a" * 90 + ".toml", "a" * 40 + "-1120-2310-"),
    ],
)
def test_fresh_ids_are_usable(name: str, expected: str) -> None:
    now = datetime(2026, 11, 20, 23, 10, tzinfo=UTC)
    text = run_folder.fresh_id(Path(name), now=now, chance=random.Random(1))
    assert text.startswith(expected)
    assert len(text) == len(expected) + 2
    assert run_id(text) == text


def test_private_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.json"
    run_folder.write_json(path, {"secret": 1})
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["endpoint.json"]


def test_another_schema_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, "a", 1.0)
    folder.receipt.write_text('{"schema_version": 99}')
    with pytest.raises(InputError, match="schema 1"):
        folder.read_json(folder.receipt)
    folder.receipt.write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        folder.read_json(folder.receipt)
    assert folder.live_endpoint() is None


def test_a_file_that_the_disk_does_not_take_leaves_the_old_one_and_no_neighbour(tmp_path) -> None:
    path = tmp_path / "receipt.json"
    run_folder.write_file(path, "old")
    with (
        files_up_to(10),
        pytest.raises(BooksUnwritable, match=rf"cannot write {path}: .*room"),
    ):
        run_folder.write_file(path, "new" * 100)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("link", [False, True])
def test_a_run_that_another_user_laid_in_a_shared_home_is_refused(
    tmp_path: Path,
    link: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is in it is run: `bamboo resume last` was theirs, with the user's rights."""
    home = tmp_path / "home"
    mine, theirs = home / "mine", home / "theirs"
    mine.mkdir(parents=True)
    (mine / "resolved.json").write_text('{"schema_version": 1, "started_s": 1.0}')
    place = tmp_path / "elsewhere" if link else theirs
    place.mkdir()
    (place / "resolved.json").write_text('{"schema_version": 1, "started_s": 2.0}')
    if link:
        theirs.symlink_to(place)
    os.chown(theirs, 65534, 65534, follow_symlinks=False)
    assert run_folder.find(home, "last").id == "mine"
    with pytest.raises(InputError, match=r"run theirs in .* belongs to another user \(uid 65534\)"):
        run_folder.find(home, "theirs")
    with pytest.raises(InputError, match="unknown run 'their'"):
        run_folder.find(home, "their")
    assert [folder.id for folder in run_folder.all_runs(home)] == ["mine", "theirs"]
    assert [folder.id for folder in run_folder.own_runs(home)] == ["mine"]
    monkeypatch.setenv("BAMBOO_HOME", str(home))
    assert main.run(["stop", "theirs"]) == 2
    assert "run theirs in" in capsys.readouterr().err
    os.chown(home, 65534, 65534)
    assert run_folder.find(home, "last").id == "theirs", "whoever has the home has what is in it"
