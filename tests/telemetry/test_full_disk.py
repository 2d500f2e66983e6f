"""Records on a full disk: whole in the file or not at all, and what can wait is not lost."""

from pathlib import Path

import pytest

from bamboo.errors import BooksUnwritable
from bamboo.jsonl import LineWriter, WaitingWriter
from bamboo.telemetry.records import Tail
from tests.full_disk import files_up_to


def test_a_line_that_is_not_taken_whole_is_not_taken_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with LineWriter(path) as writer:
        writer.write("one")
        with files_up_to(6):
            for _ in range(3):
                with pytest.raises(BooksUnwritable, match=rf"cannot write {path}: .*make room"):
                    writer.write("two")
            assert path.read_text() == "one\n"
        writer.write("two")
    assert path.read_text() == "one\ntwo\n"


def test_a_part_that_somebody_else_wrote_after_is_closed_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("torn")
    with LineWriter(path) as writer:
        assert path.read_text() == "torn"  # opening needs no room
        writer.write("whole")
    assert Tail(path).lines() == ["torn", "whole"]


def test_what_waits_is_written_in_its_order_and_told_once(tmp_path: Path) -> None:
    path, told = tmp_path / "a.jsonl", list[str]()
    writer = WaitingWriter(path, troubled=told.append)
    writer.write("0")
    with files_up_to(3):
        for number in range(1, 6):
            writer.write(str(number))
        assert len(told) == 1
        assert "waits in memory" in told[0]
        assert path.read_text() == "0\n"
    writer.write("6")
    assert Tail(path).lines() == [str(number) for number in range(7)]
    assert told[1:] == [""]
    writer.close()


def test_what_still_waits_at_the_end_is_an_error(tmp_path: Path) -> None:
    writer = WaitingWriter(tmp_path / "a.jsonl", troubled=lambda why: None)
    with files_up_to(0):
        writer.write("1")
        with pytest.raises(BooksUnwritable):
            writer.close()
    assert (tmp_path / "a.jsonl").read_text() == ""
