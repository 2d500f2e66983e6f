"""What is said of a full disk, before a start and after an end."""

from pathlib import Path

import pytest

from bamboo.errors import BooksUnwritable, InputError
from bamboo.runs import disk_space, run_folder
from tests.runs.test_reading import folder_of


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bamboo.disk.free_bytes", lambda folder: 4096)


def test_with_room_nothing_is_said(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    disk_space.refuse_without_room(tmp_path / "not" / "made" / "yet")
    disk_space.refuse_to_settle(folder)
    assert disk_space.with_disk(folder, "it broke") == "it broke"


def test_nothing_is_started_where_a_file_stands_in_the_place_of_the_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(InputError, match=r"file: it is no folder; set BAMBOO_HOME to a folder"):
            disk_space.refuse_without_room(home)


def test_nothing_is_started_on_a_full_disk(full: None, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{tmp_path} is full, 4096 bytes .*BAMBOO_HOME"):
        disk_space.refuse_without_room(tmp_path / "not" / "made" / "yet")


@pytest.mark.parametrize(("detached", "verb"), [(True, "attach"), (False, "resume")])
def test_the_remedy_fits_the_run(full: None, tmp_path: Path, detached: bool, verb: str) -> None:
    folder = folder_of(tmp_path)
    body = folder.read_json(folder.resolved)
    run_folder.write_json(folder.resolved, body | {"detached": detached})
    with pytest.raises(BooksUnwritable, match=f"`bamboo {verb} r`; nothing of it is lost"):
        disk_space.refuse_to_settle(folder)
    error = disk_space.unsettled(folder, "step 3 was the last", OSError("no space"))
    assert "step 3 was the last; its receipt cannot be written: no space; " in str(error)
    assert f"make room in {folder.path}, then `bamboo {verb} r`" in str(error)
    assert "then `bamboo resume r`" in disk_space.with_disk(folder, "its store is gone")
