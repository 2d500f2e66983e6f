"""Launches with `cluster.stages = 1`: three nodes of which two are lost, and a single node, whose
run is resumed from its checkpoint."""

from pathlib import Path

import pytest

from tests.launches.test_elastic_launch import lose_everything, receipt_of
from tests.launches.test_launch import Bench
from tests.study.on_paper import sets

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def checked(bench: Bench, name: str) -> None:
    for check in ((), ("--samples",), ("--decisions",)):
        assert bench.json("verify", name, *check)["equal"] is True


def test_three_nodes_lose_two_and_another_comes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    keys = (
        "cluster.stages=1",
        "cluster.redundancy=peer",
        "cluster.pipelines=3",
        "train.virtual_nodes=4",
        "train.batch=8",
        "train.steps=60",
        'chaos.kill=[{step=10,stage=0,pipeline=1,phase="backward"},'
        '{step=30,stage=0,pipeline=0,phase="exchange"}]',
    )
    with bench.launched("flat", *keys) as launched:
        assert launched.process.wait(timeout=120) == 0, launched.out.read_text()
    body = receipt_of(launched)
    assert body["outcome"] == "done"
    assert len(body["bill"]["instances"]) > 3, "others were rented in their place"
    checked(bench, "flat")


def test_the_only_node_is_lost_and_the_run_is_resumed_from_its_checkpoint(tmp_path: Path) -> None:
    """Nobody else comes for as long as it waits; later it goes on, and with two nodes."""
    bench = Bench(tmp_path)
    keys = (
        "cluster.stages=1",
        "cluster.redundancy=off",
        "train.steps=120",
        "train.virtual_nodes=2",
        "checkpoint.every_steps=20",
        "cloud.pool_out_s=1.0",
        "cluster.patience_s=2.0",
        "cluster.park_s=4.0",
    )
    with bench.launched("alone", *keys) as launched:
        lose_everything(bench, launched)
        assert launched.process.wait(timeout=60) == 3, launched.out.read_text()
    assert "too few nodes for cluster.park_s = 4 s" in receipt_of(launched)["sentence"]
    wider = sets("cluster.pipelines=2", "cluster.redundancy=peer")
    done = bench.run("resume", "alone", *wider)
    assert done.returncode == 0, done.stdout + done.stderr
    body = receipt_of(launched)
    assert (body["outcome"], body["step"], body["parts"]) == ("done", 120, 2)
    checked(bench, "alone")
