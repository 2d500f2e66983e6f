"""A launch that finds its own size on the virtual device: it loses a node, grows to look at twice
its nodes, finds that they bring too little, gives them back, and ends with the calm run's bits."""

import json
from pathlib import Path

import pytest

from tests.cli.test_launch import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

KEYS = (
    "train.steps=400",
    "train.batch=4",
    "train.virtual_nodes=2",
    "cluster.stages=2",
    "cluster.max_pipelines=2",
    'cluster.device="virtual"',
    "cluster.virtual_forward_ms=[6.0]",
    "cluster.virtual_backward_ms=[12.0]",
    "autoscale.enabled=true",
    # Two microbatches on two stages take three slots of time, and one takes two: twice the nodes
    # bring half as much more, on any machine.
    "autoscale.marginal=0.99",
    'chaos.kill=[{step=4, stage=1, phase="backward"}]',
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_it_grows_and_shrinks_with_the_bits_of_the_calm_run(bench: Bench) -> None:
    with bench.launched("sized", *KEYS) as launched:
        assert launched.process.wait(timeout=180) == 0, launched.out.read_text()
    folder = launched.folder
    resizes = bench.json("cost", "sized")["resizes"]
    sizes = [(one["before"], one["nodes"]) for one in resizes]
    assert sizes[:2] == [(2, 4), (4, 2)], resizes
    told = bench.run("cost", "sized").stdout
    assert "grow from 2 to 4 nodes: no other size has been measured yet" in told
    assert "not above autoscale.marginal = 0.99" in " ".join(told.split())
    receipt = json.loads((folder / "receipt.json").read_text())
    grids = [one["grid"] for one in receipt["reconfigurations"]]
    assert grids[:2] == ["2 x 2", "1 x 2"]
    assert not any(one["steps_again"] for one in receipt["reconfigurations"]), "nothing was lost"
    taken = [one for one in receipt["preemptions"] if not one["planned"]]
    assert len(taken) == 1, "nobody but the one that the cloud took was lost"
    for how in ([], ["--samples"], ["--decisions"]):
        assert bench.json("verify", "sized", *how)["equal"] is True
