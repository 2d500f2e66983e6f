"""`verify` compares every evaluation, and the end that evaluations make."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bamboo.config.load import job_from_json
from bamboo.data.dataset import load_data
from bamboo.data.evaluation import load_eval
from bamboo.models import build_model
from bamboo.runtime.check.calm_eval import CalmEval
from bamboo.runtime.check.reference import CalmRun
from tests.runtime.check.test_verify import _verify, _write_run

GOOD = ("eval.every_steps=2", "eval.source=path", "eval.path=text.txt", "eval.samples=5")
STOP = 'eval.stop={metric="loss", patience=1, better="higher"}'
Records = list[dict[str, Any]]


def evaluated_run(folder: Path, *overrides: str, steps: int = 4) -> Path:
    """A run with evaluations after steps 2 and 4, and with the records of both."""
    run = _write_run(folder, (*GOOD, *overrides), steps)
    job = job_from_json((run / "resolved.json").read_text())
    calm, data = CalmRun(job, build_model(job), load_data(job)), load_eval(job, None, None)
    assert data is not None
    evaluations = CalmEval(job, build_model(job), data)
    with (run / "metrics.jsonl").open("a") as file:
        for _ in range(steps):
            calm.step()
            if evaluations.is_due(calm):
                loss, _ = evaluations.of(calm)
                record = {"v": 1, "kind": "evaluation", "step": calm.steps_done, "loss": loss}
                file.write(json.dumps(record) + "\n")
    return run


def changed(run: Path, change: Callable[[Records], object]) -> Path:
    path = run / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    change(records)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return run


def test_all_evaluations_are_compared(tmp_path: Path) -> None:
    result, _ = _verify(evaluated_run(tmp_path))
    assert (result["equal"], result["evaluations"]) == (True, 2)


def nudged(records: Records) -> None:
    records[-2]["loss"] = math.nextafter(records[-2]["loss"], 0.0)


@pytest.mark.parametrize(
    ("change", "step"),
    [(nudged, 2), (lambda records: records.pop(), 4), (lambda records: records.pop(-2), 2)],
)
def test_one_that_differs_or_is_missing_is_named(
    tmp_path: Path, change: Callable[[Records], object], step: int
) -> None:
    result, _ = _verify(changed(evaluated_run(tmp_path), change))
    first = result["first_difference"]
    assert (first["step"], first["tensor"]) == (step, "evaluation loss")


def test_a_stop_before_an_evaluation_needs_none(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path, "train.steps=8")
    result, _ = _verify(changed(run, lambda records: records.pop()))
    assert (result["equal"], result["evaluations"]) == (True, 1)


def test_a_run_that_goes_on_beyond_its_end_is_named(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path, STOP, "train.steps=8", steps=6)
    first = _verify(run)[0]["first_difference"]
    assert (first["step"], first["calm"], first["run"]) == (4, 4, 6)
