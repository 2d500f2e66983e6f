"""A file that a person asked for: whole, and never by way of what somebody else laid there."""

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bamboo import asked_files
from bamboo.errors import InputError
from cli import main
from cli.main import MOST_CHARACTERS, one_line
from cli.new_file import refuse_to_overwrite, write_new
from tests.security.laid_names import written_through


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "missing/x.svg", "."])
def test_an_impossible_name_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot be written|no file that could") as caught:
        refuse_to_overwrite(tmp_path / name, force=True)
    assert one_line(str(caught.value)).isprintable()
    with pytest.raises(InputError):
        write_new(tmp_path / name, b"x", force=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("leads_to", ["real", "absent", "link"])
@pytest.mark.parametrize("force", [False, True])
def test_a_link_is_never_followed(tmp_path: Path, leads_to: str, force: bool) -> None:
    """Whoever may write to a folder, as all may to /tmp, can lay one at a name that is foreseen."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(leads_to)
    says = f"link is a link to {leads_to}, which is not followed; give the name of the file itself"
    says += r" \(- is standard output\)"
    for refuses in (refuse_to_overwrite, partial(write_new, data=b"new")):
        with pytest.raises(InputError, match=says):
            refuses(tmp_path / "link", force=force)
    assert (tmp_path / "real").read_text() == "old"
    assert (tmp_path / "link").is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


@pytest.mark.parametrize("force", [False, True])
def test_what_comes_to_the_name_in_between_is_not_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    (tmp_path / "real").write_text("old")
    real = asked_files._write

    def late(path: Path, data: bytes, **rest: Any) -> None:
        monkeypatch.setattr(asked_files, "_write", real)
        path.symlink_to("real")
        real(path, data, **rest)

    monkeypatch.setattr(asked_files, "_write", late)
    if force:
        write_new(tmp_path / "out", b"new", force=True)
        assert not (tmp_path / "out").is_symlink()
    else:
        with pytest.raises(InputError, match="out is a link to real"):
            write_new(tmp_path / "out", b"new", force=False)
    assert (tmp_path / "real").read_text() == "old"


def test_a_disk_whose_files_have_one_name_only_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    write_new(tmp_path / "out", b"new", force=False)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("out", b"new")]


def test_an_error_is_one_line_that_steers_no_terminal() -> None:
    assert one_line("a\n\tb\x1b[31mc\ud800 \x00") == r"a b\x1b[31mc\ud800 \x00"
    line = one_line("begin " + "x" * 10**6 + " end")
    assert line.startswith("begin xxx")
    assert line.endswith("xxx end")
    assert len(line) <= MOST_CHARACTERS + 5
    assert one_line("é 日本") == "é 日本"


def test_a_command_writes_through_nothing_that_was_laid(tmp_path: Path) -> None:
    assert written_through(lambda arguments: main.run([*arguments]) is not None, tmp_path) == []
