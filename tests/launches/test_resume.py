"""`bamboo resume` for real: launcher and cloud are killed, another grid goes on from a checkpoint,
and what comes out is bit for bit the calm run."""

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cloud.local.session import members
from testbed.store_server import start_store
from testbed.waiting import wait_until
from tests.launches.all_sorts_job import constant_objects, write_job
from tests.launches.test_detach import decided
from tests.launches.test_launch import Bench, Launched
from tests.trackers.test_libraries import TENSORBOARD, read_back
from tests.warm import warm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

EVERY = 3
STEPS = 30
KEYS = (
    f"train.steps={STEPS}",
    f"checkpoint.every_steps={EVERY}",
    "checkpoint.keep=100",
    # A step takes a third of a second, so that it is killed on its way.
    "cluster.virtual_forward_ms=[15.0]",
    "cluster.virtual_backward_ms=[30.0]",
)
QUICK = (
    *("--set", "cluster.virtual_forward_ms=[1.0]"),
    *("--set", "cluster.virtual_backward_ms=[1.0]"),
)
"""What goes on is not killed any more."""
OTHER_GRID = (*QUICK, "--set", "cluster.stages=2")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def lose_everything(launched: Launched) -> None:
    """With checkpoints of two steps complete: SIGKILL for the launcher and all of its cloud. The
    launcher hung before, so that of the last steps only the store knows."""
    saved = launched.folder / "checkpoints"

    def kept(count: int) -> None:
        wait_until(
            lambda: len(list(saved.glob("*/manifest.json"))) >= count,
            what="checkpoints",
            timeout_s=60.0,
        )

    kept(1)
    os.kill(launched.process.pid, signal.SIGSTOP)
    kept(2)
    # The cloud first: once its launcher is gone it ends all by itself, and writes that down.
    for pid in members(launched.cloud_pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    launched.process.kill()
    launched.process.wait(timeout=30)
    wait_until(lambda: not members(launched.cloud_pid), what="all dead", timeout_s=15.0)
    # Nobody was left to say so: there is no receipt, and no instance has an end.
    assert not (launched.folder / "receipt.json").exists()


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "cloud.jsonl").read_text().splitlines()]


def test_on_another_grid_from_a_checkpoint_to_the_calm_runs_bits(bench: Bench) -> None:
    """With frozen weights, which are stored once, batch norms, an optimizer and a schedule of its
    own."""
    write_job(bench)
    with bench.launched("gone", *KEYS, 'log.to=["tensorboard"]') as launched:
        lose_everything(launched)
        constant = constant_objects(launched.folder / "checkpoints")
        assert all(record["kind"] == "start" for record in journal(launched.folder))
        folder = launched.folder
        versions = decided(folder)
        # As if days had passed: more than the whole budget.
        resolved = json.loads((folder / "resolved.json").read_text())
        resolved["started_s"] -= 86400.0
        resolved["part_started_s"] -= 86400.0
        (folder / "resolved.json").write_text(json.dumps(resolved))
        sets = (*OTHER_GRID, "--set", "budget.max_hours=0.5")
        done = bench.run("resume", "gone", *sets)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gone goes on from the checkpoint of step" in done.stdout
    assert "modelled, nothing is paid" in done.stdout
    body = json.loads((folder / "receipt.json").read_text())
    assert (body["outcome"], body["step"], body["parts"]) == ("done", STEPS, 2)
    # Four of the first part, which ended with their cloud, and two of the second.
    instances = body["bill"]["instances"]
    assert len(instances) == 6
    records = journal(folder)
    ends = {r["instance"]: r["t"] for r in records if r["kind"] == "end"}
    begins = [r["t"] for r in records if r["kind"] == "start"]
    assert all(ends[i["instance"]] <= min(begins[4:]) for i in instances[:4])
    assert decided(folder)[: len(versions)] == versions
    # The first part's to their end, those too that only its store still knew; then the second's.
    everything = decided(folder)
    again = next(n for n in range(1, len(everything)) if everything[n] < everything[n - 1])
    for part in (everything[:again], everything[again:]):
        assert part == list(range(part[0], part[0] + len(part)))
    assert again > len(versions)
    assert everything[again] <= 1
    assert (folder / "parts" / "1" / "store").is_dir()
    assert constant_objects(folder / "checkpoints") == constant
    for check in ((), ("--samples",), ("--decisions",)):
        assert bench.json("verify", "gone", *check)["equal"] is True
    # One tracker run for three launchers, with each step once.
    (logged,) = body["trackers"]
    assert (logged["tracker"], logged["lost"], body["troubles"]) == ("tensorboard", 0, [])
    scalars, _ = read_back(TENSORBOARD, str(folder / "trackers" / "tensorboard"))
    assert [step for step, _ in scalars["train/loss"]] == list(range(1, STEPS + 1))
    before = json.loads((folder / "parts" / "1" / "receipt.json").read_text())
    assert (before["outcome"], before["exit_code"]) == ("fault", 1)
    assert before["ended_s"] <= min(begins[4:])
    assert sum(instance["billed_s"] for instance in before["bill"]["instances"]) > 0


def kill_all(launched: Launched) -> None:
    """SIGKILL for a launcher and all of its cloud."""
    launched.process.kill()
    for pid in members(launched.cloud_pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    launched.process.wait(timeout=30)
    wait_until(lambda: not members(launched.cloud_pid), what="all dead", timeout_s=15.0)


def lose_further_segment(bench: Bench, run: str, *arguments: str, after: int) -> None:
    """Resume a run for more steps, and kill all when the first of them are done."""
    with (bench.folder / f"{run}.longer").open("w") as out:
        process = warm().begin(
            ["cli.main", "resume", run, *arguments],
            folder=bench.folder,
            environment=bench.environment,
            output=out.fileno(),
            errors=out.fileno(),
        )
    launched = Launched(bench, run, process)
    metrics = launched.folder / "metrics.jsonl"

    def is_on() -> bool:
        assert process.poll() is None, (bench.folder / f"{run}.longer").read_text()
        return re.search(rf'"step": ?{after}\b', metrics.read_text()) is not None

    try:
        wait_until(is_on, what="a step of the further segment", timeout_s=90.0)
        endpoint = json.loads((launched.folder / "endpoint.json").read_text())
        launched.cloud_pid = endpoint["cloud"]["pid"]
        kill_all(launched)
    finally:
        process.kill()
        process.wait()


def test_a_run_that_nobody_saw_finish_is_done_and_trains_longer(bench: Bench) -> None:
    """Its launcher hangs while the nodes take the last step, and then all is killed. It goes on
    with more steps and another learning rate, is killed again, and comes to the calm run's bits."""
    # Its state has shapes of its own, which the checkpoints and the other grid have too.
    keys = (*KEYS, "train.optimizer=adafactor", "train.steps=12")
    with bench.launched("over", *keys) as launched:
        saved = launched.folder / "checkpoints"
        wait_until(lambda: any(saved.glob("*/manifest.json")), what="a checkpoint", timeout_s=60.0)
        os.kill(launched.process.pid, signal.SIGSTOP)
        wait_until(
            lambda: bench.json("status", "over")["phase"] == "finished",
            what="the end",
            timeout_s=60.0,
        )
        kill_all(launched)
        done = bench.run("resume", "over")
    assert done.returncode == 2
    assert "run over is done: there is nothing to resume" in done.stderr
    body = json.loads((launched.folder / "receipt.json").read_text())
    assert (body["outcome"], body["step"]) == ("done", 12)
    # What the job says differs is named, and not what follows from it.
    other = bench.run("resume", "over", "--steps", "24", "--set", "train.precision=bf16")
    assert other.returncode == 2
    assert "train.precision was 'fp32' and is 'bf16'" in other.stderr
    rates = ("--set", "train.learning_rate=0.01", "--set", "train.warmup_steps=2")
    lose_further_segment(bench, "over", "--steps", "24", *rates, after=14)
    done = bench.run("resume", "over", *OTHER_GRID)
    assert done.returncode == 0, done.stdout + done.stderr
    body = json.loads((launched.folder / "receipt.json").read_text())
    assert (body["outcome"], body["step"], body["steps"], body["parts"]) == ("done", 24, 24, 3)
    assert len(body["bill"]["instances"]) == 10, "of all parts"
    verified = bench.json("verify", "over")
    assert (verified["equal"], verified["steps"]) == (True, 24)
    assert [(s["from_step"], s["to_step"]) for s in verified["segments"]] == [(0, 12), (12, 24)]
    assert body["segments"] == verified["segments"]
    part = bench.json("verify", "over", "--steps", "12:24")
    assert (part["equal"], part["from_checkpoint"]) == (True, 12)


@pytest.mark.full
def test_of_a_store_that_cannot_be_read_it_is_said_what_may_be_missing(bench: Bench) -> None:
    with bench.launched("gone", *KEYS) as launched:
        lose_everything(launched)
        logs = list((launched.folder / "store").rglob("*.aof"))
        for path in logs:
            path.write_bytes(b"*1\r\n$9\r\nnonsense!\r\n" + path.read_bytes())
        done = bench.run("resume", "gone", *QUICK)
    assert logs
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its store cannot be read any more" in done.stdout
    body = json.loads((launched.folder / "receipt.json").read_text())
    assert (body["outcome"], body["step"]) == ("done", STEPS)


@pytest.mark.full
def test_with_a_store_of_ones_own(bench: Bench) -> None:
    server = start_store(bench.folder / "s", password="secret")
    try:
        bench.environment["BAMBOO_REDIS_URL"] = server.url
        with bench.launched("named", *KEYS) as launched:
            lose_everything(launched)
            done = bench.run("resume", "named", *OTHER_GRID)
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads((launched.folder / "receipt.json").read_text())["outcome"] == "done"
        assert (launched.folder / "parts" / "1" / "decisions.jsonl").exists()
        assert bench.json("verify", "named", "--decisions")["equal"] is True
    finally:
        server.stop()


@pytest.mark.full
def test_it_goes_on_with_the_strategy_that_its_search_chose_last(bench: Bench) -> None:
    """The link is so slow that rows of the embedding win within a few steps."""
    keys = (
        *("train.steps=300", "model.vocabulary=2000", "model.tied=false", "cluster.search=live"),
        *("cluster.pipelines=2", "cluster.stages=2", "cluster.virtual_link_gbps=0.02"),
        "cluster.sync=tree",
    )
    with bench.launched("searched", *keys) as launched:
        newest = launched.folder / "sync.json"
        metrics = launched.folder / "metrics.jsonl"
        wait_until(
            lambda: newest.exists() and len(metrics.read_text().splitlines()) > 20,
            what="steps by another strategy",
            timeout_s=90.0,
        )
        assert bench.run("stop", "searched").returncode == 0
        assert launched.wait() == 130, launched.out.read_text()
    chosen = json.loads(newest.read_text())["sync"]
    planned = json.loads((launched.folder / "strategy.json").read_text())
    assert planned["placement"]["sync"]["rules"] == []
    stopped = json.loads((launched.folder / "receipt.json").read_text())
    assert stopped["outcome"] == "stopped"
    kept = newest.read_text()
    newest.write_text(kept[:-20])
    refused = bench.run("resume", "searched", *QUICK)
    assert refused.returncode == 2
    assert "sync.json" in refused.stderr
    assert json.loads((launched.folder / "receipt.json").read_text()) == stopped
    assert not (launched.folder / "parts").exists(), "nothing was put away"
    newest.write_text(kept)
    done = bench.run("resume", "searched", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    resumed = json.loads((launched.folder / "strategy.json").read_text())
    assert resumed["placement"]["sync"] == chosen
    body = json.loads((launched.folder / "receipt.json").read_text())
    assert (body["outcome"], body["step"], body["parts"]) == ("done", 300, 2)
    assert bench.json("verify", "searched")["equal"] is True
    assert bench.json("verify", "searched", "--decisions")["equal"] is True
