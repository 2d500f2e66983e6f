"""`bamboo report` of a run of real processes: while it goes on, and after all of it was killed."""

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from bamboo.runs.books import DUTY
from bamboo.telemetry.records import read_events
from cloud.local.session import members
from testbed.waiting import wait_until
from tests.launches.test_launch import JOB, Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def uses_are_told(folder: Path) -> bool:
    log = folder / "events" / "launcher.jsonl"
    return log.exists() and any(event.kind == DUTY for event in read_events(log))


def test_while_it_goes_on_and_after_it_was_killed(bench: Bench) -> None:
    with bench.launched("live") as launched:
        page = launched.folder / "report.html"
        # What each instance does is written down some seconds after the last of them joined, and
        # by nobody once the launcher is killed.
        wait_until(lambda: uses_are_told(launched.folder), what="a word of all uses", timeout_s=60)
        wait_until(
            lambda: bench.run("cost", "live").returncode == 0, what="a ledger", timeout_s=60.0
        )
        body = bench.json("report", "live")
        assert body["missing"] == []
        assert body["cost"]["ended"] is False
        assert body["figures"]["preemptions"] == "0"
        assert page.read_text().count("<svg") == 8
        steps = int(body["figures"]["steps"].replace(",", ""))
        assert 0 < steps < 100_000
        launched.process.kill()
        for pid in members(launched.cloud_pid):
            with suppress(ProcessLookupError):  # the launcher's end was its own
                os.kill(pid, signal.SIGKILL)
        launched.process.wait(timeout=30)
        wait_until(lambda: not members(launched.cloud_pid), what="all dead", timeout_s=15.0)
        body = bench.json("report", "live")
        shutil.rmtree(launched.socket_dir)  # nobody was left to do it
    assert body["cost"]["ended"] is True
    assert int(body["figures"]["steps"].replace(",", "")) >= steps
    assert body["missing"] == [
        "preemptions, failovers and steps done again: the run was killed and left no receipt"
    ]
    assert "What is missing" in page.read_text()


@pytest.mark.parametrize(
    "strategy",
    [
        (),
        pytest.param(
            ("cluster.redundancy=peer", "cluster.pipelines=2", "cluster.stages=2"),
            marks=pytest.mark.full,
        ),
        pytest.param(
            (
                "cluster.redundancy=eager",
                "cluster.pipelines=2",
                "cluster.spread=pipelines",
                'cloud.zones=["us-east-1a","us-east-1b"]',
            ),
            marks=pytest.mark.full,
        ),
    ],
    ids=["left open", "peer", "eager"],
)
def test_what_is_planned_is_what_runs_at_one_value_in_receipt_cost_and_report(
    strategy: tuple[str, ...], bench: Bench
) -> None:
    """Redundancy that the job leaves open is settled by the plan."""
    open_job = JOB.replace('redundancy = "eager"\n', "")
    (bench.folder / "job.toml").write_text(open_job, encoding="utf-8")
    sets = ("train.steps=4", "cluster.device=virtual", *strategy)
    own = [word for one in sets for word in ("--set", one)]
    planned = bench.json("plan", "job.toml", *own)
    (bench.folder / "plan.json").write_text(json.dumps(planned))
    placed = ("job.toml", "--strategy", "plan.json", *own)
    dry = bench.json("launch", *placed, "--dry-run")
    done = bench.run("launch", *placed, "--run", "one")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = bench.home / "one"
    assert json.loads((folder / "strategy.json").read_text()) == planned["strategy"]
    cluster = json.loads((folder / "resolved.json").read_text())["job"]["cluster"]
    assert cluster["redundancy"] == planned["redundancy"] != "auto"
    receipt = json.loads((folder / "receipt.json").read_text())
    cost, report = bench.json("cost", "one"), bench.json("report", "one")["cost"]
    for name in ("step_s", "samples_per_s", "usd_per_hour", "samples_per_usd"):
        assert dry[name] == pytest.approx(planned[name], rel=1e-3)
        for body in (receipt, cost, report):
            assert body["planned"][name] == pytest.approx(planned[name], rel=1e-3)
    zones = [one["zones"] for one in planned["spreads"] if one["name"] == planned["spread"]]
    where = ",".join(zones[0]) if zones else planned["zone"]
    calm = ("--hazard", "0", "--hours", "1", "--endless", "--zones", where)
    figures = bench.json("simulate", *placed, *calm)["systems"]["bamboo"]["figures"]
    assert figures["samples_per_s"]["mean"] == pytest.approx(planned["samples_per_s"], rel=1e-3)
    whole = planned["samples_per_usd_with_transfer"]
    assert figures["samples_per_usd"]["mean"] == pytest.approx(whole, rel=1e-3)
    for name in ("samples_per_s", "samples_per_usd", "tokens_per_usd"):
        assert receipt[name] == cost[name] == report[name] > 0
    assert "planned, for calm steps: " in bench.run("cost", "one").stdout
