"""Runs that are taken off the disk: those that have ended, whole, and nothing beside them."""

import json
from pathlib import Path

import pytest

from bamboo.errors import InputError
from bamboo.ids import run_id
from bamboo.runs import lock, removing, run_folder
from bamboo.runs.removing import disk_use, remove, too_many, why_not
from cli import main
from tests.runs.test_damaged_runs import folder_of, truncate

MIB = 1 << 20


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    return tmp_path / "runs"


def ended(home: Path, name: str, *, started_s: float = 1000.0) -> run_folder.RunFolder:
    """With a final state of a MiB, and a link to what is somebody's."""
    folder = folder_of(home, name, started_s=started_s)
    run_folder.write_json(folder.receipt, {})
    folder.final.mkdir()
    (folder.final / "stage-0.safetensors").write_bytes(b"x" * MIB)
    outside = home.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").write_text("kept")
    (folder.path / "checkpoints").symlink_to(outside)
    return folder


def test_the_disk_is_counted_by_part_without_following_a_link(home: Path) -> None:
    folder = ended(home, "a")
    earlier = folder.path / "parts" / "1" / "final"
    earlier.mkdir(parents=True)
    (earlier / "stage-0.safetensors").write_bytes(b"x" * 2 * MIB)
    parts = disk_use(folder)
    assert list(parts) == ["earlier parts", "final", "books"]
    assert MIB <= parts["final"] < 2 * MIB <= parts["earlier parts"]


def test_a_run_goes_whole_and_takes_nothing_along(home: Path) -> None:
    folder = ended(home, "a")
    other = ended(home, "b")
    remove(folder)
    assert [path.name for path in home.iterdir()] == ["b"]
    assert (home.parent / "outside" / "kept").read_text() == "kept"
    assert other.receipt.exists()


def test_one_that_was_cut_off_is_gone_on_with(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ended(home, "a")

    def refuses(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(removing.shutil, "rmtree", refuses)
    with pytest.raises(InputError, match=r"is not removed whole: .*goes on with it"):
        remove(folder)
    monkeypatch.undo()
    monkeypatch.setenv("BAMBOO_HOME", str(home))
    assert lock.is_free(folder)
    assert main.run(["rm", "a", "--yes"]) == 0
    assert not folder.path.exists()


def test_what_may_live_stays(home: Path) -> None:
    led, lost, account, damaged = (folder_of(home, name) for name in ("led", "lost", "acc", "bad"))
    held = lock.take(led)
    assert held is not None
    assert "`bamboo stop led` ends it" in why_not(led)
    with pytest.raises(InputError, match="run led is not removed: it is going on"):
        remove(led)
    held.close()
    body = json.loads(account.resolved.read_text())
    body["job"]["cloud"]["provider"] = "ec2"
    account.resolved.write_text(json.dumps(body))
    assert "its instances may run; `bamboo stop acc`" in why_not(account)
    run_folder.write_json(led.endpoint, {"store_url": "redis://127.0.0.1:1"})
    assert "`bamboo attach led`" in why_not(led)
    truncate(damaged.resolved)
    for gone in (lost, damaged):
        remove(gone)
    assert {path.name for path in home.iterdir()} == {"led", "acc"}


def test_who_comes_second_finds_nothing_and_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ended(home, "a"), run_folder.RunFolder(id=run_id("a"), path=home / "a")
    seen = why_not(second)
    remove(first)
    monkeypatch.setattr(removing, "why_not", lambda folder: seen)
    with pytest.raises(InputError, match="run a is gone: it has just been removed"):
        remove(second)
    assert not second.path.exists()


def test_the_lock_and_what_makes_it_a_run_go_last(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ended(home, "a")
    gone: list[str] = []
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        gone.append(path.name)
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    remove(folder)
    assert gone[-2:] == [lock.NAME, "resolved.json"]
    assert "receipt.json" in gone


@pytest.mark.parametrize("vanishes", ["started", "damaged"])
def test_a_run_that_goes_while_all_are_listed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], vanishes: str
) -> None:
    ended(home, "a")
    gone = ended(home, "b")
    if vanishes == "damaged":
        truncate(gone.resolved)
    found = run_folder._folders(home)
    remove(gone)
    monkeypatch.setattr(run_folder, "_folders", lambda base: found)
    assert [folder.id for folder in run_folder.all_runs(home)] == ["a"]
    assert run_folder.find(home, "last").id == "a"
    assert main.run(["list", "--json"]) == 0
    assert [row["run"] for row in json.loads(capsys.readouterr().out)] == ["a"]
    assert main.run(["prune", "--keep", "0", "--yes"]) == 0
    with pytest.raises(InputError, match="unknown run 'last'"):
        run_folder.find(home, "last")


def test_prune_goes_on_after_one_that_stays(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another prune may be at the same runs: what it takes is none of ours, and no error."""
    stays, gone, last = (
        ended(home, name, started_s=at_s) for name, at_s in (("a", 1.0), ("b", 2.0), ("c", 3.0))
    )
    real, held = removing.remove, lock.take(stays)
    monkeypatch.setattr(removing, "too_many", lambda folders, keep: [stays, gone, last])

    def slowly(folder: run_folder.RunFolder) -> None:
        if folder == gone and folder.path.exists():
            real(folder)
        real(folder)

    monkeypatch.setattr(removing, "remove", slowly)
    assert main.run(["prune", "--keep", "0", "--yes", "--json"]) == 2
    out = capsys.readouterr()
    assert [row["run"] for row in json.loads(out.out)] == ["c"]
    assert "run a is not removed: it is going on" in out.err
    assert [path.name for path in home.iterdir()] == ["a"]
    assert held is not None
    held.close()


def test_rm_unasked_takes_no_part_of_an_id(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said twice, `rm gpt --yes` would take gpt, then gpt-2."""
    for name in ("gpt", "gpt-2"):
        ended(home, name)
    assert main.run(["rm", "gpt", "--yes"]) == 0
    for part in ("gpt", "last"):
        assert main.run(["rm", part, "--yes"]) == 2
        assert (
            f"--yes: '{part}' is not a whole id; at present it means run gpt-2"
            in capsys.readouterr().err
        )
    assert [path.name for path in home.iterdir()] == ["gpt-2"]


def test_a_link_to_a_run_is_not_the_run(home: Path) -> None:
    folder = ended(home, "a")
    (home / "b").symlink_to(folder.path)
    with pytest.raises(InputError, match="b is a link"):
        remove(run_folder.find(home, "b"))


def test_the_newest_stay_and_so_does_what_has_not_ended(home: Path) -> None:
    old, middle, new = (
        ended(home, name, started_s=at_s) for name, at_s in (("c", 1.0), ("b", 2.0), ("a", 3.0))
    )
    folder_of(home, "lost", started_s=0.0)
    there = run_folder.own_runs(home)
    assert [folder.id for folder in too_many(there, 1)] == [old.id, middle.id]
    assert too_many(there, 3) == []
    assert [folder.id for folder in too_many(there, 0)] == [old.id, middle.id, new.id]


def test_prune_says_what_goes_before_it_asks(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, at_s in (("c", 1.0), ("b", 2.0), ("a", 3.0)):
        ended(home, name, started_s=at_s)
    assert main.run(["prune", "--keep", "1"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in said[:3]] == ["run", "c", "b"]
    assert "there is nobody to ask; --yes" in said[-1]
    assert main.run(["prune", "--keep", "1", "--yes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in rows] == ["c", "b"]
    assert [path.name for path in home.iterdir()] == ["a"]
    assert main.run(["prune", "--keep", "1"]) == 0
    assert "there are no more than 1 ended runs" in capsys.readouterr().out


def test_rm_names_what_lies_elsewhere(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ended(home, "a")
    body = json.loads(folder.resolved.read_text())
    body["job"]["checkpoint"]["url"] = "s3://bucket/mine"
    folder.resolved.write_text(json.dumps(body))
    assert main.run(["rm", "a", "--yes"]) == 0
    out = capsys.readouterr()
    assert out.out == "a is removed\n"
    assert "its files at s3://bucket/mine stay there" in out.err


def test_a_run_says_what_it_takes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(home, "a")
    assert main.run(["list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["disk_bytes"] > 0
    assert main.run(["status", "a"]) == 0
    assert "  on the disk 4.0 KiB: books 4.0 KiB" in capsys.readouterr().out
