"""The end of a run whose local cloud stands still: bounded, told, and nothing is left."""

import os
import signal
from pathlib import Path

import pytest

from cloud.local.session import is_member
from testbed.waiting import wait_until
from tests.launches.test_detach import Detached, detached
from tests.launches.test_launch import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def _gone(run: Detached, launcher_pid: int) -> None:
    wait_until(
        lambda: not is_member(launcher_pid, launcher_pid), what="the launcher ends", timeout_s=30.0
    )
    run.assert_gone()


def test_a_run_whose_cloud_stands_still_stops_with_a_receipt(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with detached(bench, "still-cloud") as run:
        launcher_pid = run.launcher_pid
        os.kill(run.cloud_pid, signal.SIGSTOP)
        done = bench.run("stop", "still-cloud")
        assert "stopped by `bamboo stop`" in done.stdout, done.stderr
        body = run.receipt()
        _gone(run, launcher_pid)
    assert (body["outcome"], body["exit_code"]) == ("stopped", 130)
    (trouble,) = body["troubles"]
    assert trouble.startswith("instances may still be running (")
    assert f"process {run.cloud_pid}, did not end them within 15 s" in trouble
    log = (run.folder / "logs" / "launcher.log").read_text()
    assert "ending the instances, for up to 15 s: " in log
    assert "got no answer" in log
    assert trouble in log
    again = bench.run("attach", "still-cloud")
    assert f"trouble {trouble}" in " ".join(again.stdout.split())
