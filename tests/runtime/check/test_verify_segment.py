"""`verify --steps A:B`: a segment is compared from a checkpoint on, and what is wrong is named."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bamboo import wiring
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import stage_file
from bamboo.checkpoint.retention import delete
from bamboo.config.load import job_from_json, job_to_json
from bamboo.errors import InputError
from bamboo.runs.segment import checkpoints
from bamboo.runtime.check.verify import verify
from bamboo.runtime.check.verify_segment import main, verify_segment
from tests.runtime.check.kept_run import (
    KEPT,
    STEPS,
    corrupted,
    flip,
    flip_honestly,
    foreign,
    garbled,
    lacking,
    manifest_of,
    nudge_loss,
    torn,
    truncated,
    write_run,
)
from tests.warm import ran


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A run that a test may spoil; the job's text stays where it was."""
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def check(run: Path, first: int, stop: int) -> tuple[dict[str, Any], list[int]]:
    """The result, and the steps that were trained for it."""
    seen: list[int] = []
    found = verify_segment(
        run, first, stop, lambda done, *_: seen.append(done - 1), checkpoints=checkpoints
    )
    return found, seen


# ---------------------------------------------------------------- what is equal


@pytest.mark.parametrize(
    ("first", "stop", "start", "compared_with"),
    [
        (3, 6, 3, ["checkpoint"]),
        (3, 12, 3, ["checkpoint", "final"]),
        (0, 3, 0, ["checkpoint"]),
        (0, 2, 0, []),
        (5, 7, 3, []),
        (8, 9, 6, ["checkpoint"]),
        (11, 12, 9, ["checkpoint", "final"]),
    ],
)
def test_a_good_segment_is_equal(
    whole: Path, first: int, stop: int, start: int, compared_with: list[str]
) -> None:
    result, seen = check(whole, first, stop)
    assert (result["equal"], result["first_difference"]) == (True, None)
    assert (result["from_checkpoint"], result["compared_with"]) == (start, compared_with)
    assert (result["segment"], result["steps"]) == ([first, stop], stop - first)
    assert seen == list(range(start, stop))
    assert result["passed_over"] == []
    assert bool(result["tensors"]) is bool(compared_with)


@pytest.mark.parametrize("override", ["model.tied=true", "train.virtual_nodes=4"])
def test_other_semantics_are_gone_on_with_too(tmp_path: Path, override: str) -> None:
    assert check(write_run(tmp_path, (override,)), 6, 12)[0]["equal"] is True


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.sets(st.sampled_from(KEPT[:-1])),
    spoilt=st.none() | st.integers(0, STEPS - 1) | st.just("final"),
)
def test_all_segments_say_what_the_whole_says(
    whole: Path,
    tmp_path_factory: pytest.TempPathFactory,
    cuts: set[int],
    spoilt: int | str | None,
) -> None:
    """Checkpoint to checkpoint, from 0 to the end: equal where the whole run is, else one of them
    finds what the whole finds first, and all before it are equal."""
    run = tmp_path_factory.mktemp("drawn") / "run"
    shutil.copytree(whole, run)
    if isinstance(spoilt, int):
        nudge_loss(run, spoilt)
    elif spoilt:
        flip(run / "final" / stage_file(1))
    expected = verify(run, lambda done, steps, loss: None)
    results = [check(run, a, b)[0] for a, b in pairwise((0, *sorted(cuts), STEPS))]
    found = [r["first_difference"] for r in results if not r["equal"]]
    assert all(r["equal"] for r in results) is expected["equal"] is (spoilt is None)
    assert [{k: v for k, v in f.items() if k != "of"} for f in found] == [
        f for f in (expected["first_difference"],) if f is not None
    ]
    assert sum(r["steps"] for r in results) == expected["steps"]
    assert all(r["tensors"] == expected["tensors"] for r in results)


# ---------------------------------------------------------------- what differs


def test_the_last_bit_of_a_loss_is_found_at_its_step(run: Path) -> None:
    nudge_loss(run, 7)
    result, seen = check(run, 6, 9)
    first = result["first_difference"]
    assert (result["equal"], first["step"], first["tensor"]) == (False, 7, "loss")
    assert first["calm"] != first["run"][0]
    assert seen == [6, 7]
    assert check(run, 9, 12)[0]["equal"] is True
    assert check(run, 8, 9)[0]["equal"] is True, "step 7 was not asked for"


def test_a_loss_that_was_never_recorded_is_a_difference(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines[:7], *lines[8:]]))
    first = check(run, 6, 9)[0]["first_difference"]
    assert (first["step"], first["tensor"], first["run"]) == (7, "loss", [])


def test_a_wrong_checkpoint_is_found_by_the_segment_that_ends_there(run: Path) -> None:
    flip_honestly(run, 6)
    result, _ = check(run, 3, 6)
    first = result["first_difference"]
    assert (result["equal"], first["step"], first["of"]) == (False, 5, "checkpoint")
    assert first["tensor"].startswith("param/")
    assert len(first["calm"]) == len(first["run"]) == 64


def test_a_wrong_checkpoint_to_begin_from_is_found_by_what_follows(run: Path) -> None:
    flip_honestly(run, 6, bit=1 << 6)  # of an exponent: another loss at once
    result, _ = check(run, 6, 9)
    assert (result["equal"], result["first_difference"]["tensor"]) == (False, "loss")


def test_a_flipped_bit_of_the_final_state_is_named(run: Path) -> None:
    flip(run / "final" / stage_file(1))
    result, _ = check(run, 9, 12)
    first = result["first_difference"]
    assert (result["equal"], first["step"], first["of"]) == (False, 11, "final")
    assert first["tensor"].startswith("param/")
    assert check(run, 6, 9)[0]["equal"] is True


# ---------------------------------------------------------------- what is passed over or refused


SPOILT = [
    (truncated, "is truncated: "),
    (corrupted, "is corrupted: "),
    (lacking, "lacks "),
    (foreign, "is of other semantics (0000000000000000"),
    (garbled, "has a damaged manifest"),
]


@pytest.mark.parametrize(("spoil", "says"), [(torn, "is torn: it has no manifest"), *SPOILT])
def test_a_spoilt_checkpoint_is_named_and_the_one_before_taken(
    run: Path, spoil: Callable[[Path, int], None], says: str
) -> None:
    spoil(run, 6)
    result, seen = check(run, 6, 9)
    assert (result["equal"], result["from_checkpoint"]) == (True, 3)
    (why,) = result["passed_over"]
    assert why.startswith(f"the checkpoint of step 6 {says}")
    assert seen == list(range(3, 9))


@pytest.mark.parametrize(("spoil", "says"), SPOILT)
def test_a_spoilt_checkpoint_is_not_compared_with(
    run: Path, spoil: Callable[[Path, int], None], says: str
) -> None:
    spoil(run, 6)
    with pytest.raises(InputError) as refused:
        check(run, 3, 6)
    assert f"the checkpoint of step 6 {says}" in str(refused.value)
    assert "it cannot be compared with: delete it, or choose another B" in str(refused.value)


def test_a_checkpoint_that_was_never_completed_is_none(run: Path) -> None:
    torn(run, 6)
    result, _ = check(run, 3, 6)
    assert (result["equal"], result["compared_with"], result["tensors"]) == (True, [], 0)
    assert result["passed_over"] == ["the checkpoint of step 6 is torn: it has no manifest"]


@pytest.mark.parametrize(
    ("left", "says"),
    [
        ((6, 9), "checkpoints of steps 6, 9 are there; give --steps 6:9, or --steps 0:8 to "),
        ((9,), "checkpoint of step 9 is there; give --steps 9:12, or --steps 0:8 to begin"),
        ((12,), "checkpoint of step 12 is there; give --steps 0:8 to begin from the initial"),
        ((), "there are none behind it either; give --steps 0:8 to begin from the initial state"),
    ],
)
def test_without_a_checkpoint_it_says_what_can_be_verified(
    run: Path, left: tuple[int, ...], says: str
) -> None:
    for step in KEPT:
        if step not in left:
            delete(DirectoryStore(run / "checkpoints"), step)
    with pytest.raises(InputError) as refused:
        check(run, 5, 8)
    assert f"no good checkpoint at or before step 5 in {run / 'checkpoints'}; {says}" in str(
        refused.value
    )
    assert check(run, 0, 8)[0]["equal"] is True


def test_the_damaged_ones_are_named_where_no_good_one_is_left(run: Path) -> None:
    corrupted(run, 3)
    with pytest.raises(InputError, match=r"step 4 in .*; the checkpoint of step 3 is corrupted: "):
        check(run, 4, 8)


@pytest.mark.parametrize(
    ("first", "stop", "says"),
    [
        (5, 5, "5:5 is no segment; give A:B with A < B"),
        (6, 5, "6:5 is no segment"),
        (-1, 5, "-1:5 is no segment"),
        (0, 13, "0:13 goes beyond the run, which has done 12 steps; give A:B with B at most 12"),
        (20, 30, "20:30 goes beyond the run"),
    ],
)
def test_what_is_no_segment_of_the_run_is_refused(
    whole: Path, first: int, stop: int, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        check(whole, first, stop)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("resolved.json", None, "name the folder of a run"),
        ("strategy.json", "{}", "is damaged"),
        ("metrics.jsonl", '{"step": 0, "lo\n', "line 1 is not JSON"),
        ("final/manifest.json", "{}", "is damaged"),
    ],
)
def test_what_is_no_run_is_refused(run: Path, name: str, content: str | None, message: str) -> None:
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_text(content)
    with pytest.raises(InputError, match=message):
        check(run, 6, 9)


def test_a_checkpoint_of_another_model_is_refused(run: Path) -> None:
    path, manifest = manifest_of(run, 6)
    path.write_text(replace(manifest, shards=manifest.shards[:1]).to_json())
    with pytest.raises(InputError, match=r"step 6 is not of this model: exp_avg/2\.\S+ is in one"):
        check(run, 6, 9)


def test_a_run_that_goes_on_or_broke_off_is_checked_as_far_as_it_came(run: Path) -> None:
    shutil.rmtree(run / "final")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:8]) + lines[8][:9])
    assert check(run, 3, 6)[0]["compared_with"] == ["checkpoint"]
    assert check(run, 6, 8)[0]["equal"] is True
    with pytest.raises(InputError, match="which has done 8 steps"):
        check(run, 6, 9)
    (run / "metrics.jsonl").write_text(lines[0][:9])
    with pytest.raises(InputError, match="no step was done yet"):
        check(run, 6, 9)


# ---------------------------------------------------------------- the command


def test_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = ran("bamboo.runs.segment", str(run), "3", "6")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["equal"] is True
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["step"], line["steps"]) for line in lines] == [(4, 6), (5, 6), (6, 6)]
    assert main([str(run), "3"], checkpoints=checkpoints) == 2
    assert main([str(run), "3", "x"], checkpoints=checkpoints) == 2
    assert "usage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "provider", "where"),
    [
        ("{tmp}/kept", "local", "{tmp}/kept/run"),
        ("s3://bucket/prefix/", "local", "s3://bucket/prefix/run"),
        ("s3://bucket/prefix/", "ec2", "s3://bucket/prefix/run"),
        ("", "ec2", "s3://mine/runs/run/checkpoints"),
    ],
)
def test_checkpoints_lie_where_the_job_says(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    url: str,
    provider: Literal["local", "ec2"],
    where: str,
) -> None:
    """As the run's nodes have put them there, in the region of the run's account."""
    url, where = url.format(tmp=tmp_path), where.format(tmp=tmp_path)
    job = job_from_json((run / "resolved.json").read_text())
    job = replace(
        job,
        checkpoint=replace(job.checkpoint, url=url),
        cloud=replace(
            job.cloud,
            provider=provider,
            bucket="mine",
            region="eu-north-1",
            zones=("eu-north-1a",),
        ),
    )
    (run / "resolved.json").write_text(job_to_json(job))
    (tmp_path / "kept").mkdir()
    (run / "checkpoints").rename(tmp_path / "kept" / run.name)
    asked: list[tuple[str, str]] = []

    def bucket(address: str, *, region: str) -> DirectoryStore:
        asked.append((address, region))
        return DirectoryStore(tmp_path / "kept" / run.name)

    monkeypatch.setattr(wiring, "bucket", bucket)
    found, _ = check(run, 3, 6)
    assert found["equal"] is True
    assert found["compared_with"] == ["checkpoint"]
    assert asked == ([(where, "eu-north-1")] if where.startswith("s3:") else [])
    delete(DirectoryStore(tmp_path / "kept" / run.name), 3)
    with pytest.raises(InputError, match=f"no good checkpoint at or before step 3 in {where}; "):
        check(run, 3, 6)
