"""What an option cannot be ends a benchmark before it plays anything."""

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path

import pytest

from benchmarks.measuring.options import at_least, chosen, job_file, more_than_zero, trace_file


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "nan", "", "two"])
def test_a_number_of_rounds_is_whole_and_not_below_the_least(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="give a whole number, 1 at least"):
        at_least(1)(text)
    assert at_least(1)("1") == 1


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "", "long"])
def test_a_time_is_finite_and_above_zero(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="give a number above 0"):
        more_than_zero(text)
    assert more_than_zero("0.5") == 0.5


def test_a_trace_is_read_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match="cannot be read as a trace"):
        trace_file(str(tmp_path / "none.csv"))
    (tmp_path / "text.csv").write_text("no trace\n")
    with pytest.raises(ArgumentTypeError):
        trace_file(str(tmp_path / "text.csv"))


def test_a_job_is_a_file_that_can_be_read(tmp_path: Path) -> None:
    for what in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(ArgumentTypeError, match="name a job file that can be read"):
            job_file(str(what))
    (tmp_path / "job.toml").write_text("")
    assert job_file(str(tmp_path / "job.toml")) == tmp_path / "job.toml"


def test_an_unknown_name_is_said_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = ArgumentParser()
    assert chosen(parser, "part", "b,a", ("a", "b")) == ["b", "a"]
    with pytest.raises(SystemExit):
        chosen(parser, "part", "a,c", ("a", "b"))
    assert "there is no part 'c'; there are a, b" in capsys.readouterr().err
