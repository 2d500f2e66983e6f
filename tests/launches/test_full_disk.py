"""A run whose folder lies on a disk that becomes full: it waits or ends by name, and goes on."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud.local.session import is_member, members
from testbed.waiting import wait_until
from tests.full_disk import fill, small_disk
from tests.launches.test_detach import GONE_S, Detached, detached
from tests.launches.test_launch import Bench, Launched
from tests.launches.test_resume import QUICK

SHORT = ("train.steps=100", "checkpoint.every_steps=5")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    with small_disk(bench.home, size="24m"):
        yield bench


def _without_store(run: Detached | Launched) -> bool:
    return not any(
        b"valkey-server" in Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in members(run.cloud_pid)
        if Path(f"/proc/{pid}").exists()
    )


def _filled(bench: Bench, run: Detached | Launched) -> Path:
    """Fill the disk until the store, which needs room for each record, is gone."""
    filler = bench.home / "filler"

    def full_and_gone() -> bool:
        fill(filler)
        return _without_store(run)

    wait_until(full_and_gone, what="the store ends", timeout_s=60.0)
    return filler


def test_a_run_waits_for_room_and_goes_on(bench: Bench) -> None:
    with detached(bench, "waits") as run:
        launcher_pid = run.launcher_pid
        filler = _filled(bench, run)
        until_s = time.monotonic() + 3.0  # more than all three restarts of old took
        wait_until(lambda: time.monotonic() > until_s, what="a while", timeout_s=10.0)
        assert _without_store(run)
        assert is_member(launcher_pid, launcher_pid)
        assert is_member(run.cloud_pid, run.cloud_pid)
        filler.unlink()
        wait_until(lambda: not _without_store(run), what="the store is back", timeout_s=30.0)
        run.wait_for_steps(5)
        done = bench.run("stop", "waits")
        assert done.returncode == 0, done.stderr
        body = run.receipt()
        run.assert_gone()
    assert body["outcome"] == "stopped"
    assert run.steps() == list(range(body["step"]))
    log = (run.folder / "logs" / "launcher.log").read_text()
    assert "Traceback" not in log
    assert "training goes on; the disk of" in log
    assert "the disk of" in (run.folder / "logs" / "cloud.log").read_text()


def test_a_run_that_ended_on_a_full_disk_says_what_to_do_and_is_settled_then(bench: Bench) -> None:
    with detached(bench, "ends", *SHORT) as run:
        run.wait_for_steps(12)
        filler = _filled(bench, run)
        for pid in (run.launcher_pid, run.cloud_pid):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not members(run.cloud_pid), what="all gone", timeout_s=GONE_S)
        fill(filler)
        for verb, remedy in (("attach", "bamboo attach ends"), ("resume", "make room there")):
            done = bench.run(verb, "ends")
            assert done.returncode != 0
            assert f"the disk of {run.folder} is full" in done.stderr
            assert remedy in done.stderr
            assert "Traceback" not in done.stderr
        assert "make room there" in bench.run("status", "ends").stdout
        assert not (run.folder / "receipt.json").exists()
        filler.unlink()
        done = bench.run("attach", "ends")
        assert done.returncode == 1, done.stderr
        body = run.receipt()
        assert body["outcome"] == "fault"
        assert run.steps() == list(range(body["step"]))
        assert [p.name for p in run.folder.glob(".*")] == []
        done = bench.run("resume", "ends", *QUICK)
        assert done.returncode == 0, done.stderr
    assert run.receipt()["outcome"] == "done"


@pytest.mark.full
def test_an_attached_run_that_is_ended_on_a_full_disk_names_it(bench: Bench) -> None:
    with bench.launched("breaks", *SHORT) as run:
        filler = _filled(bench, run)
        run.process.send_signal(signal.SIGTERM)  # at once, as two Ctrl-C
        assert run.process.wait(timeout=90) == 1
        said = " ".join(run.out.read_text().split())
        assert f"make room in {run.folder}, then `bamboo resume breaks`" in said
        assert "nothing of its checkpoints is lost" in said
        assert "Traceback" not in said
        assert "a fault of Bamboo's own" not in said
        assert [p.name for p in run.folder.rglob(".*")] == []
        filler.unlink()
        done = bench.run("resume", "breaks", *QUICK)
        assert done.returncode == 0, done.stderr
