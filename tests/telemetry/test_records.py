"""Records survive a round trip, a torn line and a reader of another version."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.errors import InputError
from bamboo.jsonl import LineWriter
from bamboo.telemetry.records import EventRecord, MetricRecord, Tail, read_events, read_metrics


def event(**change: object) -> EventRecord:
    given_: dict[str, object] = {
        "t_s": 12.5,
        "run": "r",
        "generation": 2,
        "node": "i-1.0",
        "kind": "step",
        "step": 3,
        "data": {"a": 1},
    }
    return EventRecord(**{**given_, **change})  # type: ignore[arg-type]


def metric(step: int = 1, loss: float = 3.25) -> MetricRecord:
    return MetricRecord(step=step, loss=loss, tokens_per_s=10.0, usd=0.5, tokens_per_usd=20.0)


def test_event_has_the_keys_of_the_interface() -> None:
    assert json.loads(event().to_json()) == {
        "v": 1,
        "t": 12.5,
        "run": "r",
        "gen": 2,
        "node": "i-1.0",
        "kind": "step",
        "step": 3,
        "data": {"a": 1},
    }
    assert "step" not in json.loads(event(step=None).to_json())


def test_event_round_trip() -> None:
    for value in (event(), event(step=None), event(data={})):
        assert EventRecord.from_json(value.to_json()) == value


def test_a_step_has_its_count_and_its_metrics() -> None:
    step = replace(metric(), count=7, unit="image", metrics={"accuracy": 0.25})
    assert MetricRecord.from_json(step.to_json()) == step
    assert json.loads(step.to_json())["metrics"] == {"accuracy": 0.25}
    assert not {"count", "unit", "metrics"} & json.loads(metric().to_json()).keys()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_loss_keeps_every_bit(loss: float) -> None:
    read = MetricRecord.from_json(metric(loss=loss).to_json())
    assert read.loss.hex() == loss.hex()
    assert math.copysign(1, read.loss) == math.copysign(1, loss)


def test_an_edited_loss_is_refused() -> None:
    line = metric().to_json().replace('"loss":3.25', '"loss":3.24')
    with pytest.raises(InputError, match="edited"):
        MetricRecord.from_json(line)


@pytest.mark.parametrize(
    "line", ['{"v":2}', "[]", "3", '{"v":1}', "{", '{"v":1,"t":"x","run":"r"}', '{"v":1,"step":[]}']
)
def test_foreign_lines_are_refused(line: str) -> None:
    for read in (EventRecord.from_json, MetricRecord.from_json):
        with pytest.raises(InputError):
            read(line)


@pytest.mark.parametrize(
    ("name", "value"), [("step", -1), ("step", 10**400), ("step", 10**15), ("t", math.nan)]
)
def test_a_step_that_no_run_has_and_a_time_that_is_none_are_refused(
    name: str, value: float
) -> None:
    line = json.dumps(json.loads(metric().to_json()) | {name: value})
    with pytest.raises(InputError, match=r"lacks or garbles .*take the original"):
        MetricRecord.from_json(line)


def test_tail_waits_for_the_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "events" / "a.jsonl"
    tail = Tail(path)
    assert tail.lines() == []
    with LineWriter(path) as writer:
        writer.write("one")
        assert tail.lines() == ["one"]
        with path.open("a") as other:
            other.write("tw")
        assert tail.lines() == []
        with path.open("a") as other:
            other.write("o\n\nthree\n")
        assert tail.lines() == ["two", "three"]


def test_a_line_torn_by_a_kill_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    whole = event().to_json()
    path.write_text(whole + "\n" + whole[:20])
    with LineWriter(path) as writer:
        writer.write(event(step=4).to_json())
    assert [e.step for e in read_events(path)] == [3, 4]


def test_metrics_come_in_step_order(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with LineWriter(path) as writer:
        for step in (2, 1, 3):
            writer.write(metric(step=step).to_json())
    assert [m.step for m in read_metrics(path)] == [1, 2, 3]


def test_a_record_is_one_line(tmp_path: Path) -> None:
    with LineWriter(tmp_path / "a") as writer, pytest.raises(ValueError, match="one line"):
        writer.write("a\nb")
    writer.close()
    assert os.path.getsize(tmp_path / "a") == 0
