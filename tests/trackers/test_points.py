"""The books of a run become points, each offered once."""

from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.errors import InputError
from bamboo.trackers import points
from bamboo.trackers.points import (
    Point,
    Position,
    job_values,
    next_batch,
    read_position,
    waiting,
    write_position,
)
from tests.trackers.books import START_S, Books


def test_a_step_an_evaluation_and_an_event_are_points(tmp_path: Path) -> None:
    books = Books(tmp_path)
    books.event("Quiesced", "of no interest", step=0)
    books.event("PeerLost", "node i-1.0 is gone", step=1)
    books.step(0, loss=2.75)
    books.evaluation(1, loss=float("inf"))
    found, position = next_batch(books.folder, Position())
    assert found == [
        Point(step=1, at_s=START_S + 1, text="PeerLost: node i-1.0 is gone"),
        Point(
            step=1,  # steps taken, as an evaluation counts them
            at_s=START_S,
            values={
                "train/loss": 2.75,
                "train/accuracy": 0.5,
                "run/usd": 0.25,
                "run/samples_per_s": 8.0,
                "run/samples_per_usd": 100.0,
                "run/nodes": 4.0,
            },
        ),
        Point(step=1, at_s=START_S + 1, values={"eval/loss": float("inf"), "eval/seconds": 0.5}),
    ]
    assert position.trying == 3
    assert next_batch(books.folder, position.settled())[0] == []


def test_each_line_comes_once_in_batches_and_a_torn_one_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "AT_ONCE_BYTES", 100)  # less than a line
    books = Books(tmp_path)
    for step in range(5):
        books.step(step)
    whole = books.folder.metrics.read_bytes()
    books.folder.metrics.write_bytes(whole + b"\n{torn by a kill\n" + whole[:40])
    assert waiting(books.folder, Position()) == 5
    position, steps = Position(), []
    while True:
        found, after = next_batch(books.folder, position)
        if after.metrics == position.metrics:
            break
        steps += [point.step for point in found]
        position = after.settled()
    assert steps == [1, 2, 3, 4, 5]
    assert (position.taken, position.lost) == (5, 0)
    with books.folder.metrics.open("ab") as file:
        file.write(whole[40 : whole.index(b"\n") + 1])
    assert [point.step for point in next_batch(books.folder, position)[0]] == [1]


def test_a_place_is_read_as_it_was_written_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wandb.json"
    assert read_position(path) == Position()
    position = Position(metrics=7, events=3, taken=2, lost=1, trying=4, job="ab", why="no route")
    write_position(path, position)
    assert read_position(path) == position
    assert position.settled() == replace(position, taken=6, trying=0)
    assert position.settled(why="away").lost == 5
    for damaged in ("{", "[]", '{"metrics": 1}', '{"metrics": "x"}'):
        path.write_text(damaged)
        with pytest.raises(InputError, match=r"wandb.json is damaged: .*; put the original back"):
            read_position(path)


def test_the_job_is_flat() -> None:
    job = {"train": {"steps": 3, "group": []}, "cloud": {"zones": ["a"]}, "file": "job.toml"}
    assert job_values(job) == {
        "train.steps": 3,
        "train.group": "[]",
        "cloud.zones": '["a"]',
        "file": "job.toml",
    }
