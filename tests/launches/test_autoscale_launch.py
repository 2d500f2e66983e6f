"""A launch that finds its own size on the virtual device: it loses a node, grows to look at twice
its nodes, finds that they bring too little, gives them back, and is stopped with the calm run's
bits."""

import json
import re
from pathlib import Path

import pytest

from testbed.waiting import wait_until
from tests.launches.test_launch import Bench, Launched

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

GOES_ON = re.compile(r"all go on from step \d+ on (\d+ x \d+)")
KEYS = (
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


def laid_out_anew(launched: Launched) -> list[str]:
    """The grids, in order, that nodes were taken into or given back for."""
    assert launched.process.poll() is None, launched.out.read_text()
    path = launched.folder / "events" / "launcher.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    told = [json.loads(line)["data"] for line in lines if line.endswith("\n")]
    return [found[0] for one in told if (found := GOES_ON.findall(str(one.get("reason"))))]


def test_it_grows_and_shrinks_with_the_bits_of_the_calm_run(bench: Bench) -> None:
    with bench.launched("sized", *KEYS) as launched:
        # However long new nodes take to come: the run has steps enough, and is stopped then.
        wait_until(
            lambda: laid_out_anew(launched)[:2] == ["2 x 2", "1 x 2"],
            what="two nodes more, and two fewer",
            timeout_s=150.0,
        )
        stopped = bench.run("stop", "sized")
        assert stopped.returncode == 0, stopped.stderr
        assert launched.wait() == 130
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


def test_the_option_needs_something_to_choose_and_no_trace(bench: Bench) -> None:
    alone = bench.run("launch", "job.toml", "--dry-run", "--autoscale")
    assert alone.returncode == 2
    assert "cluster.max_pipelines = 1: leaves autoscale.enabled nothing" in alone.stderr
    (bench.folder / "market.csv").write_text("".join(f"0,add,n{n}\n" for n in range(8)))
    two = ("--autoscale", "--set", "cluster.max_pipelines=2")
    both = bench.run("launch", "job.toml", "--dry-run", *two, "--trace", "market.csv")
    assert both.returncode == 2, both.stderr
    assert "--trace and autoscale.enabled both say how many nodes" in both.stderr
    planned = bench.run("launch", "job.toml", "--dry-run", *two, "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["instances"] == 4, "it begins with its first grid"
