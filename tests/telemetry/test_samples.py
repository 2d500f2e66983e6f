"""The record of what a step used: a round trip, ranges, a torn line, a damaged file."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.errors import InputError
from bamboo.jsonl import LineWriter
from bamboo.telemetry.samples import (
    SamplesRecord,
    microbatches_of,
    ranges_text,
    read_samples,
    used,
)


def record(step: int = 3, microbatches: tuple[int, ...] = (0, 1, 2, 4)) -> SamplesRecord:
    return SamplesRecord(step=step, microbatches=microbatches, digest="0" * 16)


def test_the_line() -> None:
    assert json.loads(record().to_json()) == {
        "v": 1, "step": 3, "microbatches": "0-2,4", "samples": "0" * 16,
    }  # fmt: skip


@given(st.lists(st.integers(0, 40), max_size=12))
def test_every_list_of_microbatches_survives(numbers: list[int]) -> None:
    assert list(microbatches_of(ranges_text(numbers))) == numbers
    value = record(microbatches=tuple(numbers))
    assert SamplesRecord.from_json(value.to_json()) == value


def test_what_a_node_says() -> None:
    losses = {1: 0.5, 0: 0.25}
    said = used(losses, lambda m: [10 * m, 10 * m + 1])
    assert said == {
        "microbatches": "0-1",
        "samples": hashlib.sha256(b"0,1,10,11").hexdigest()[:16],
    }
    assert SamplesRecord.of_step(7, said).microbatches == (0, 1)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"v":2,"step":0,"microbatches":"0","samples":"x"}',
        '{"v":1,"step":-1,"microbatches":"0","samples":"x"}',
        '{"v":1,"step":0,"samples":"x"}',
        '{"v":1,"step":0,"microbatches":"0-x","samples":"x"}',
        '{"v":1,"step":0,"microbatches":"5-2","samples":"x"}',
        '{"v":1,"step":0,"microbatches":"0-99999999999","samples":"x"}',
    ],
)
def test_foreign_lines_are_refused(line: str) -> None:
    with pytest.raises(InputError):
        SamplesRecord.from_json(line)


def test_a_torn_line_is_passed_over_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(record(0).to_json() + "\n" + record(1).to_json()[:20])
    with LineWriter(path) as writer:
        writer.write(record(2).to_json())
    assert [r.step for r in read_samples(path)] == [0, 2]
    path.write_text('{"v":1,"step":0}\n')
    with pytest.raises(InputError, match="lacks or garbles 'microbatches'"):
        read_samples(path)
    with pytest.raises(InputError, match="there is none"):
        read_samples(tmp_path / "nothing")
