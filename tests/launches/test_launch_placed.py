"""A job whose grid, cut and redundancy are left to the planner, and then launched for real."""

import json
from pathlib import Path

import pytest

from tests.launches.test_launch import JOB, Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def test_what_is_planned_is_what_runs_and_the_bits_are_the_jobs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    open_job = JOB.replace('redundancy = "eager"\n', "")
    (tmp_path / "job.toml").write_text(open_job)
    planned = bench.json("plan", "job.toml", "--nodes", "2")
    assert planned["grid"] == {"pipelines": 1, "stages": 2}
    (tmp_path / "plan.json").write_text(json.dumps(planned))
    kill = '[{step=10, stage=1, phase="backward"}]'
    done = bench.run(
        "launch", "job.toml", "--run", "placed", "--strategy", "plan.json",
        "--set", f"chaos.kill={kill}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    folder = bench.home / "placed"
    assert json.loads((folder / "strategy.json").read_text()) == planned["strategy"]
    cluster = json.loads((folder / "resolved.json").read_text())["job"]["cluster"]
    assert cluster["redundancy"] == planned["redundancy"] != "auto"
    assert (cluster["pipelines"], cluster["stages"]) == (1, 2)
    receipt = json.loads((folder / "receipt.json").read_text())
    assert receipt["outcome"] == "done"
    assert bench.json("verify", "placed")["equal"] is True


def test_redundancy_that_the_job_leaves_open_is_settled_before_the_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "job.toml").write_text(JOB.replace('redundancy = "eager"\n', ""))
    kill = '[{step=10, stage=2, phase="forward"}]'
    done = bench.run(
        "launch", "job.toml", "--run", "auto", "--verbose", "--set", f"chaos.kill={kill}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "redundancy auto is " in done.stdout
    resolved = json.loads((bench.home / "auto" / "resolved.json").read_text())
    mode = resolved["job"]["cluster"]["redundancy"]
    assert mode in {"stash", "gap", "eager", "full"}, "without checkpoints a loss must be survived"
    strategy = json.loads((bench.home / "auto" / "strategy.json").read_text())
    assert strategy["placement"]["redundancy"] == mode
    assert bench.json("verify", "--decisions", "auto")["equal"] is True
