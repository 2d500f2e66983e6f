"""Limits of a run: refused before the start where the plan goes beyond them, kept during the run,
and nothing is lost by a stop."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launches.test_launch import Bench
from tests.launches.test_resume import QUICK
from tests.study.on_paper import nothing_is_looked_at, refused, sets

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

STEPS = 40
SETS = (
    "train.steps=40",
    'cluster.device="virtual"',
    "cluster.virtual_forward_ms=[15.0]",
    "cluster.virtual_backward_ms=[30.0]",
    'cloud.market="on-demand"',
    'chaos.kill=[{step=6, stage=1, phase="forward"}]',
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def launch(bench: Bench, name: str, *options: str) -> Any:
    return bench.run("launch", "job.toml", "--run", name, *sets(*SETS), *options)


def steps_of(folder: Path) -> list[int]:
    return [
        json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def test_at_the_limit_it_is_kept_stopped_and_can_go_on(bench: Bench) -> None:
    # Four instances come to $0.0351 at least; one that replaced the lost one would make it $0.0438.
    done = launch(bench, "dear", "--max-cost", "0.04", "--max-instances", "5")
    assert done.returncode == 4, done.stdout + done.stderr
    folder = bench.home / "dear"
    receipt = json.loads((folder / "receipt.json").read_text())
    assert (receipt["outcome"], receipt["exit_code"]) == ("budget", 4)
    assert "budget.max_usd = 0.04" in receipt["sentence"]
    step = receipt["step"]
    assert 6 < step < STEPS
    assert steps_of(folder) == list(range(step))
    # The job writes no checkpoints: that of the stop is there all the same.
    assert receipt["newest_checkpoint"] == step
    assert f"bamboo resume dear: from step {step}" in done.stdout
    bill = receipt["bill"]
    assert bill["whole_usd"] == pytest.approx(bill["usd"] + bill["beside"]["usd"], abs=1e-6)
    cost = bench.json("cost", "dear")["spent"]
    assert cost["beside"] == bill["beside"]
    assert cost["budget"]["left_usd"] == pytest.approx(0.04 - bill["whole_usd"], abs=2e-6)
    assert 0.035 < bill["usd"] < bill["whole_usd"] <= 0.04
    assert f"(${bill['usd']:.4f} for instances, $0.0" in receipt["sentence"]
    assert f", ${bill['whole_usd']:.4f} with disks and bytes" in done.stdout
    ends = [json.loads(line)["kind"] for line in (folder / "cloud.jsonl").read_text().splitlines()]
    assert ends.count("start") == ends.count("end") == 4
    assert not (folder / "endpoint.json").exists()

    refused = bench.run("resume", "dear")
    assert refused.returncode == 2
    assert "budget.max_usd = 0.04: the plan needs at least $0.07" in refused.stderr
    assert "beside them, $0.03" in refused.stderr
    assert "spent before (modelled: " in refused.stderr

    done = bench.run("resume", "dear", "--max-cost", "1", "--set", "chaos.kill=[]", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"dear goes on from the checkpoint of step {step}" in done.stdout
    receipt = json.loads((folder / "receipt.json").read_text())
    assert (receipt["outcome"], receipt["step"], receipt["parts"]) == ("done", STEPS, 2)
    assert [one["steps_again"] for one in receipt["reconfigurations"]] == [0]
    assert steps_of(folder) == list(range(STEPS))
    assert bench.json("verify", "dear")["equal"] is True
    assert bench.json("verify", "dear", "--samples")["equal"] is True
    uses = {one["use"] for one in bench.json("cost", "dear")["spent"]["uses"]}
    assert "lost work" not in uses, "it went on from where it had stopped"
    report = bench.json("report", "dear")
    assert report["figures"]["preemptions"] == "1"
    assert report["figures"]["lost steps"] == "0"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--max-instances", "3"),
            ("budget.max_instances = 3: the plan needs 4 instances, for a grid of 1 x 4",
             "fewer cluster.stages"),
        ),
        (
            ("--max-cost", "0.001"),
            ("budget.max_usd = 0.001: the plan needs at least $0.03",
             "$0.0351 for instances, $0.00", "(modelled: 40 calm steps of",
             "4 instances for $2.10/h", "budget.partial"),
        ),
        (
            ("--max-hours", "0.0001"),
            ("budget.max_hours = 0.0001: the plan needs at least 0.0", "40 calm steps of"),
        ),
        (
            ("--max-cost", "0.03", "--set", "budget.partial=true"),
            ("budget.max_usd = 0.03: 4 instances for $2.10/h cost at least $0.0351 as soon as",
             "raise it beyond $0.0351"),
        ),
        (("--max-cost", "0"), ("--max-cost 0 lets nothing run",)),
        (("--max-hours", "nan"), ("--max-hours nan lets nothing run",)),
        (("--max-instances", "-1"), ("--max-instances -1 lets nothing run",)),
    ],
)  # fmt: skip
def test_a_plan_beyond_its_limits_is_refused(
    bench: Bench,
    options: tuple[str, ...],
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nothing_is_looked_at(monkeypatch)
    monkeypatch.setenv("BAMBOO_HOME", str(bench.home))
    monkeypatch.delenv("BAMBOO_REDIS_URL", raising=False)
    monkeypatch.chdir(bench.folder)
    command = ["launch", "job.toml", "--run", "never", *sets(*SETS), *options]
    error = refused(capsys, command)
    for some in words:
        assert some in error
    assert not (bench.home / "never").exists()
    assert refused(capsys, [*command, "--dry-run"]) == error
