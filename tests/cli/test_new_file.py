"""A file that a person asked for: whole, and never by way of what somebody else laid there."""

from pathlib import Path

import pytest

from bamboo.errors import InputError
from cli.main import MOST_CHARACTERS, one_line
from cli.new_file import refuse_to_overwrite, write_new


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "missing/x.svg", "."])
def test_an_impossible_name_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot be written|no file that could") as caught:
        refuse_to_overwrite(tmp_path / name, force=True)
    assert one_line(str(caught.value)).isprintable()
    with pytest.raises(InputError):
        write_new(tmp_path / name, b"x", force=True)
    assert not list(tmp_path.iterdir())


def test_a_link_is_replaced_only_when_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(InputError, match="is there already"):
        write_new(tmp_path / "link", b"new", force=False)
    assert (tmp_path / "real").read_text() == "old"
    write_new(tmp_path / "link", b"new", force=True)
    assert (tmp_path / "real").read_text() == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_a_link_that_leads_to_itself_stays(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for force in (False, True):
        with pytest.raises(InputError, match="is a link that leads to itself; give another path"):
            write_new(tmp_path / "loop", b"x", force=force)
    assert (tmp_path / "loop").is_symlink()


def test_an_error_is_one_line_that_steers_no_terminal() -> None:
    assert one_line("a\n\tb\x1b[31mc\ud800 \x00") == r"a b\x1b[31mc\ud800 \x00"
    line = one_line("begin " + "x" * 10**6 + " end")
    assert line.startswith("begin xxx")
    assert line.endswith("xxx end")
    assert len(line) <= MOST_CHARACTERS + 5
    assert one_line("é 日本") == "é 日本"
