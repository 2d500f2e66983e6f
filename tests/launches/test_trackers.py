"""A whole run with a tracker that hangs in every call, beside one without."""

import json
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from bamboo.trackers.supervised import END_S
from tests.launches.test_launch import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(400)]

HANGS = """
import signal

class Run:
    def log(self, *_, **__):
        while True:
            signal.pause()

    finish = log

def init(**_):
    return Run()
"""
SETS = (
    "train.steps=60",
    'cluster.device="virtual"',
    "cluster.virtual_forward_ms=[10.0]",
    "cluster.virtual_backward_ms=[20.0]",
)


def times(folder: Path) -> list[float]:
    """Seconds from step to step."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [after - before for before, after in pairwise(json.loads(line)["t"] for line in lines)]


def test_a_tracker_that_hangs_changes_no_bit_and_no_time_of_a_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    library = tmp_path / "libraries" / "trackio"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(HANGS)
    losses = {}
    for run, sets in (("calm", SETS), ("hangs", (*SETS, 'log.to=["trackio"]'))):
        if run == "hangs":
            path = bench.environment.get("PYTHONPATH", "")
            bench.environment["PYTHONPATH"] = f"{library.parent}:{path}"
        words = [part for one in sets for part in ("--set", one)]
        done = bench.run("launch", "job.toml", "--run", run, *words, timeout_s=150)
        assert done.returncode == 0, done.stdout + done.stderr
        folder = bench.home / run
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        losses[run] = [line["loss_hex"] for line in lines]
    assert losses["hangs"] == losses["calm"]
    assert "tracker trackio lacks" in done.stdout
    (logged,) = json.loads((folder / "receipt.json").read_text())["trackers"]
    assert (logged["taken"], logged["late"]) == (0, True)
    assert logged["lost"] >= 60
    calm, hangs = (
        json.loads((bench.home / run / "receipt.json").read_text())["wall_s"]
        for run in ("calm", "hangs")
    )
    assert hangs < calm + END_S / 2  # the wait at the end is not the run's
    calm, hangs = (statistics.median(times(bench.home / run)) for run in ("calm", "hangs"))
    assert hangs == pytest.approx(calm, rel=0.1)
