"""The figures that benchmarks print of their rounds."""

import errno
import json
import os
import random
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.measuring import report
from benchmarks.measuring.report import (
    command_of,
    median_with_interval,
    paired_ratios,
    ratio_of_means,
    write_result,
)


def test_the_interval_of_a_median_holds_it_and_narrows_with_more_rounds() -> None:
    rng = random.Random(3)
    few, many = ([rng.gauss(1.0, 0.1) for _ in range(n)] for n in (7, 700))
    wide, narrow = median_with_interval(few), median_with_interval(many)
    for middle, low, high in (wide, narrow):
        assert low <= middle <= high
    assert narrow[2] - narrow[1] < (wide[2] - wide[1]) / 3
    assert narrow[1] < 1.0 < narrow[2]


def test_an_interval_covers_the_true_median_about_nineteen_times_in_twenty() -> None:
    rng = random.Random(5)
    found = [median_with_interval([rng.gauss(0, 1) for _ in range(15)]) for _ in range(60)]
    assert sum(low <= 0 <= high for _, low, high in found) >= 51


def test_one_value_is_its_own_interval_and_the_same_rounds_give_the_same_one() -> None:
    assert median_with_interval([2.5]) == (2.5, 2.5, 2.5)
    assert median_with_interval([1, 2, 4]) == median_with_interval([1, 2, 4])


def test_ratios_are_of_rounds_that_stand_beside_each_other() -> None:
    assert paired_ratios([2, 9], [1, 3]) == [2, 3]
    with pytest.raises(ValueError, match="argument"):
        paired_ratios([1, 2], [1])


def test_a_command_names_what_was_asked_and_no_folder() -> None:
    asked = Namespace(trace=Path("/a/b/p3.csv"), quiet_seconds=0.0, systems="", dry=False)
    listed = Namespace(members=[4, 64], dry=True)
    assert command_of("part", listed) == "python -m benchmarks.part --members 4 64 --dry"
    assert (
        command_of("part", asked) == "python -m benchmarks.part --trace p3.csv --quiet-seconds 0.0"
    )


def test_a_part_does_not_replace_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    whole = write_result("x", "command", {"rows": 6})
    part = write_result("x", "command", {"rows": 1}, "8x256,16x512", "")
    assert part.name.startswith("x-8x256+16x512-2")
    assert [json.loads(path.read_text())["rows"] for path in (whole, part)] == [6, 1]


def test_a_ratio_of_means_is_as_sure_as_its_pairs_are_alike() -> None:
    assert ratio_of_means([3.0, 6.0], [4.0, 8.0]) == (0.75, 0.75, 0.75)
    rng = random.Random(2)
    below = [rng.uniform(1, 9) for _ in range(30)]
    middle, low, high = ratio_of_means([x * rng.gauss(0.7, 0.1) for x in below], below)
    assert low < middle < high
    assert low < 0.7 < high


def test_a_result_that_cannot_be_written_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    path = write_result("x", "command", {"rows": 6})
    before = path.read_text()
    monkeypatch.setattr(Path, "write_text", _full)
    with pytest.raises(SystemExit, match="cannot be written: No space left on device"):
        write_result("x", "command", {"rows": 7})
    assert [file.read_text() for file in tmp_path.glob("x-*")] == [before]


def _full(path: Path, text: str) -> int:
    path.write_bytes(text[:1].encode())
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
