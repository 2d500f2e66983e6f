"""What somebody has laid at the name of a file is never written into."""

import errno
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from bamboo.errors import BooksUnwritable
from bamboo.jsonl import LineWriter
from bamboo.new_files import copy_all, open_to_append, whole_file, write_whole


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that somebody wants us to write into."""
    path = tmp_path / "victim"
    path.write_text("mine")
    (tmp_path / "folder").mkdir()
    return path


def link(victim: Path, path: Path) -> None:
    path.symlink_to(victim)


def link_to_nothing(victim: Path, path: Path) -> None:
    path.symlink_to(victim.with_name("absent"))


def second_name(victim: Path, path: Path) -> None:
    path.hardlink_to(victim)


def pipe(victim: Path, path: Path) -> None:
    os.mkfifo(path)


Laid = Callable[[Path, Path], None]


@pytest.mark.parametrize("lay", [link, link_to_nothing, second_name, pipe])
def test_a_new_file_takes_the_place_of_what_lies_there(
    victim: Path, tmp_path: Path, lay: Laid
) -> None:
    path = tmp_path / "folder" / "new"
    lay(victim, path)
    write_whole(path, b"new")
    assert path.is_file()
    assert not path.is_symlink()
    assert (path.read_text(), victim.read_text()) == ("new", "mine")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "victim"]
    assert [p.name for p in path.parent.iterdir()] == ["new"]


@pytest.mark.parametrize("lay", [link, link_to_nothing, second_name, pipe])
def test_what_came_to_the_name_meanwhile_is_kept(victim: Path, tmp_path: Path, lay: Laid) -> None:
    path = tmp_path / "folder" / "new"
    with ExitStack() as stack:
        stack.enter_context(whole_file(path, replace=False)).write(b"new")
        lay(victim, path)
        with pytest.raises(FileExistsError):
            stack.close()
    assert victim.read_text() == "mine"
    assert [p.name for p in path.parent.iterdir()] == ["new"]


def test_a_folder_that_is_exchanged_meanwhile_gets_nothing(victim: Path, tmp_path: Path) -> None:
    """Its name leads elsewhere by the time that the file is whole."""
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with whole_file(folder / "victim") as file:
        file.write(b"new")
        folder.rename(tmp_path / "before")
        folder.symlink_to(elsewhere)
    assert (tmp_path / "before" / "victim").read_text() == "new"
    assert not list(elsewhere.iterdir())


def test_half_a_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("whole")
    writing = whole_file(tmp_path / "old")
    writing.__enter__().write(b"ha")
    error = ValueError("the rest is lost")
    assert not writing.__exit__(ValueError, error, None)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("old", "whole")]


@pytest.mark.parametrize(
    ("lay", "what"), [(link, "a link"), (link_to_nothing, "a link"), (pipe, "a pipe (FIFO)")]
)
def test_what_is_appended_to_is_a_file(victim: Path, tmp_path: Path, lay: Laid, what: str) -> None:
    """A pipe without a reader would be waited for without end."""
    path = tmp_path / "log"
    lay(victim, path)
    with pytest.raises(OSError) as caught:
        open_to_append(path)
    assert caught.value.strerror == f"it is {what}, no file"
    with pytest.raises(BooksUnwritable, match="log: it is a "):
        LineWriter(path)
    assert victim.read_text() == "mine"
    assert not victim.with_name("absent").exists()


def test_what_is_appended_comes_at_its_end(tmp_path: Path) -> None:
    with open_to_append(tmp_path / "log") as one, open_to_append(tmp_path / "log") as other:
        one.write(b"a")
        other.write(b"b")
        one.write(b"c")
    assert (tmp_path / "log").read_text() == "abc"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("refused_at", [None, 0, 1])
def test_a_copy_is_whole_where_the_system_does_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_at: int | None
) -> None:
    data, sent, real = os.urandom(10_000), 0, os.sendfile
    (tmp_path / "a").write_bytes(data)

    def send(out: int, source: int, offset: None, _: int) -> int:
        nonlocal sent
        if sent == refused_at:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sent += 1
        return real(out, source, offset, 3000)

    monkeypatch.setattr(os, "sendfile", send)
    with (tmp_path / "a").open("rb") as source, whole_file(tmp_path / "b") as target:
        copy_all(source, target)
    assert (tmp_path / "b").read_bytes() == data
