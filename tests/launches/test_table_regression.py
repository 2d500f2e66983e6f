"""The example with data and a loss of its own: two nodes are lost, one without notice."""

import json
import shutil
from pathlib import Path

import pytest

from bamboo.telemetry.records import read_metrics
from tests.launches.test_launch import Bench

# In `make test` the digits show a launch with data of its own.
pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLS = '[{step=8, stage=1, phase="backward", microbatch=1}, {step=14, stage=2, notice_s=0.3}]'


def test_a_table_has_the_bits_of_a_calm_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    shutil.copy(EXAMPLES / "table_regression.toml", tmp_path)
    source = (EXAMPLES / "table_regression.py").read_text(encoding="utf-8")
    # The mean loss is known, so as a metric it shows that each microbatch counts once.
    metric = "(predicted_B1 - progress_B1).abs().sum()"
    assert metric in source
    source = source.replace(metric, "loss(predicted_B1, progress_B1)")
    (tmp_path / "table_regression.py").write_text(source, encoding="utf-8")
    sets = ("train.steps=150", f"chaos.kill={KILLS}", "cloud.boot_s=0.2")
    overrides = [part for one in sets for part in ("--set", one)]
    done = bench.run("launch", "table_regression.toml", "--run", "table", *overrides)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "samples/$" in said
    assert not any(word in said for word in ("entropy", "token"))
    receipt = json.loads((bench.home / "table" / "receipt.json").read_text())
    assert len(receipt["preemptions"]) == 2
    assert (receipt["unit"], receipt["tokens"]) == ("patient", None)
    assert receipt["unigram_entropy_nats"] is None
    assert receipt["last_loss"] < receipt["first_loss"] / 1.5
    steps = read_metrics(bench.home / "table" / "metrics.jsonl")
    assert [one.metrics["error"] for one in steps] == [one.loss for one in steps]
    assert receipt["last_metrics"] == {"error": receipt["last_loss"]}
    found = bench.json("verify", "table")
    assert (found["equal"], found["metrics"]) == (True, ["error"])
    assert bench.run("report", "table", "--out", "page.html").returncode == 0
    page = (tmp_path / "page.html").read_text()
    assert "per patient after 150 of 150 steps" in page
    assert not any(word in page for word in ("entropy", "token"))
    assert bench.json("verify", "table", "--samples")["equal"] is True
