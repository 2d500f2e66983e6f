"""A run that was resumed with more steps: `verify` follows each segment with its own learning rate,
from the initial weights to the last step."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.config.load import job_from_json, job_to_json
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.runtime.check.verify import verify
from bamboo.runtime.check.verify_segment import verify_segment
from bamboo.topology.strategy import Strategy
from tests.runtime.check.kept_run import STEPS, lengthen, nudge_loss, write_run

pytestmark = pytest.mark.timeout(120)
MORE = STEPS + 6


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = write_run(tmp_path)
    lengthen(run, MORE, ("train.learning_rate=0.02", "train.warmup_steps=1"))
    return run


def verified(run: Path) -> dict[str, Any]:
    return verify(run, lambda step, steps, loss: None)


def part(run: Path, first: int, stop: int) -> dict[str, Any]:
    def kept(run: Path, job: JobConfig) -> tuple[str, DirectoryStore]:
        return "here", DirectoryStore(run / "checkpoints")

    return verify_segment(run, first, stop, lambda *told: None, checkpoints=kept)


def test_the_whole_is_bit_for_bit_one_segment_after_the_other(run: Path) -> None:
    body = verified(run)
    assert (body["equal"], body["steps"]) == (True, MORE)
    assert [(s["from_step"], s["to_step"]) for s in body["segments"]] == [(0, STEPS), (STEPS, MORE)]
    assert body["segments"][1]["semantic_hash"] == body["semantic_hash"]
    nudge_loss(run, 2)
    assert verified(run)["first_difference"]["step"] == 2, "of the first segment, too"


def test_a_part_begins_from_a_checkpoint_of_the_segment_before(run: Path) -> None:
    body = part(run, STEPS, MORE)
    assert (body["equal"], body["from_checkpoint"], body["segment"]) == (True, STEPS, [STEPS, MORE])
    assert body["compared_with"] == ["final"]
    nudge_loss(run, MORE - 1)
    assert part(run, STEPS + 1, MORE)["first_difference"]["step"] == MORE - 1


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 0.03},
        {"warmup_steps": 0},
        {"steps": STEPS + 1},
        {"to_step": STEPS - 1},
    ],
)
def test_another_learning_rate_of_what_is_done_gives_other_bits(
    run: Path, change: dict[str, Any]
) -> None:
    """Planted in both files that are to agree."""
    job = job_from_json((run / "resolved.json").read_text())
    held = Strategy.from_json((run / "strategy.json").read_text())
    job = replace(job, segments=(replace(job.segments[0], **change),))
    semantics = replace(held.semantics, segments=[held.semantics.segments[0] | change])
    (run / "resolved.json").write_text(job_to_json(job))
    with pytest.raises(InputError, match="cannot repeat the bits of the run"):
        verified(run)
    (run / "strategy.json").write_text(replace(held, semantics=semantics).to_json())
    assert verified(run)["equal"] is False


@pytest.mark.parametrize(
    ("segments", "says"),
    [
        ([{"to_step": 0}], r"segments\[0\].to_step = 0: is not after step 0"),
        ([{"to_step": 13}], "or beyond the 12 that were planned"),
        ([{}, {"to_step": 12}], r"segments\[1\].to_step = 12: is not after step 12"),
        ([{"steps": "12"}], "must be a whole number"),
    ],
)
def test_damaged_segments_are_named(run: Path, segments: list[dict[str, Any]], says: str) -> None:
    body = json.loads((run / "resolved.json").read_text())
    [held] = body["job"]["segments"]
    body["job"]["segments"] = [held | one for one in segments]
    with pytest.raises(InputError, match=says):
        job_from_json(json.dumps(body))
