"""`bamboo chaos` for real: a short swarm comes out green, and what is wrong has a name."""

import json
from pathlib import Path

import pytest

from tests.launches.test_launch import LONG, Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

PATIENCE_S = 400.0
"""It takes half a minute on two idle cores."""

SEED = 16
"""A notice that is kept, then an instance killed without one."""
SETTINGS = (
    *LONG,
    "cluster.stages=2",
    "cluster.standbys=1",
    "cluster.patience_s=5",
    "cloud.pool_out_s=1",
    "checkpoint.every_steps=10",
)
SETS = [part for setting in SETTINGS for part in ("--set", setting)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_short_swarm_comes_out_green_and_leaves_nothing(bench: Bench) -> None:
    options = ("--seed", str(SEED), "--minutes", "0.25", "--run", "swarm")
    arguments = ("chaos", "job.toml", *options, *SETS, "--json")
    done = bench.run(*arguments, timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert "\n  again: step " in done.stderr, "the calm training is told of while it goes on"
    verdict = f"no finding in 11 checks: nothing lost, every bit that of a calm run; {bench.home}"
    assert f"{verdict}/swarm/chaos.json" in done.stderr.splitlines()
    failed = [verdict for verdict in body["verdicts"] if not verdict["ok"]]
    assert failed == []
    names = ["end", "losses", "orphans", "faults", "progress"]
    names += ["protection", "fences", "checkpoints", "decisions", "samples", "calm"]
    assert [verdict["name"] for verdict in body["verdicts"]] == names
    folder = bench.home / "swarm"
    records = [json.loads(line) for line in (folder / "chaos.jsonl").read_text().splitlines()]
    done = [record["fault"] for record in records if record["kind"] == "fault"]
    assert done == [fault["kind"] for fault in body["faults"]]
    assert len(done) >= 2
    assert json.loads((folder / "chaos.json").read_text())["seed"] == SEED
    started = (folder / "logs" / "cloud.log").read_text()
    assert started
    assert not (folder / "endpoint.json").exists()


def test_the_seed_comes_first_and_the_faults_can_be_seen_without_a_start(bench: Bench) -> None:
    done = bench.run("chaos", "job.toml", "--seed", "7", "--minutes", "2", "--dry-run", *SETS)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("seed 7; again: bamboo chaos job.toml --seed 7 --minutes 2 --set ")
    assert len(rest) >= 5
    assert not bench.home.exists()


def test_a_job_that_must_fail_is_refused(bench: Bench) -> None:
    done = bench.run("chaos", "job.toml", "--seed", "7")
    assert done.returncode == 2
    assert "checkpoint.every_steps = 'auto'" in done.stderr


def test_minutes_that_leave_no_fault_are_refused(bench: Bench) -> None:
    done = bench.run("chaos", "job.toml", "--seed", "7", "--minutes", "0.01", *SETS)
    assert done.returncode == 2
    assert "--minutes 0.01 leaves no time for a fault" in done.stderr.splitlines()[-1]
    assert not bench.home.exists()


def test_a_launch_that_fails_is_named(bench: Bench) -> None:
    sets = (*SETS, "--set", "data.path=nowhere.txt")
    done = bench.run("chaos", "job.toml", "--seed", "7", "--minutes", "0.2", *sets)
    assert done.returncode == 2
    assert "nowhere.txt" in done.stderr
