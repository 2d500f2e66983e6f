"""Notices to both nodes of a run that can have no others: it parks with all that it has trained,
and `bamboo resume` goes on from the last step."""

import json
from pathlib import Path

import pytest

from testbed.waiting import wait_until
from tests.launches.all_sorts_job import constant_objects, write_job
from tests.launches.test_elastic_launch import control_of
from tests.launches.test_launch import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

KEYS = (
    "train.steps=60",
    "checkpoint.every_steps=5",
    "checkpoint.keep=100",
    "cluster.stages=2",
    "cluster.park_s=3",
    "cloud.pool_out_s=1.0",
    # A step takes a fifth of a second.
    "cluster.virtual_forward_ms=[10.0]",
    "cluster.virtual_backward_ms=[20.0]",
)


def test_both_nodes_will_be_taken_and_resume_goes_on_from_the_last_step(tmp_path: Path) -> None:
    """Frozen weights are stored once, by the emergency too."""
    bench = Bench(tmp_path)
    write_job(bench)
    with bench.launched("kept", *KEYS) as launched:
        control_of(launched).refuse(code="InsufficientInstanceCapacity", count=10_000)
        for stage, notice_s in ((0, "5"), (1, "5.5")):
            told = bench.run("preempt", "kept", "--stage", str(stage), "--notice", notice_s)
            assert told.returncode == 0, told.stderr
        wait_until(lambda: launched.process.poll() is not None, what="the end", timeout_s=60.0)
        assert launched.process.returncode == 3
    receipt = json.loads((launched.folder / "receipt.json").read_text())
    assert receipt["outcome"] == "parked"
    done = receipt["newest_checkpoint"]
    assert 0 < done == receipt["step"], "no step that was taken is lost"
    assert f"`bamboo resume kept` goes on from step {done}" in receipt["sentence"]
    constant = constant_objects(launched.folder / "checkpoints")
    again = bench.run("resume", "kept")
    assert again.returncode == 0, again.stderr
    assert f"the checkpoint of step {done}" in again.stdout + again.stderr
    assert constant_objects(launched.folder / "checkpoints") == constant
    for how in ([], ["--samples"], ["--decisions"]):
        assert bench.json("verify", "kept", *how)["equal"] is True
