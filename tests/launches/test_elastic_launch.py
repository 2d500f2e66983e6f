"""A launch that loses every node at one instant, while the cloud has no more: it waits for
capacity, goes on from its checkpoint by itself, and ends with the calm run's bits; or its patience
ends."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bamboo.ids import InstanceId
from cloud.local.control import ControlClient
from testbed.waiting import wait_until
from tests.launches.test_launch import Bench, Launched

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EVERY = 20
KEYS = (
    "train.steps=60",
    "cluster.stages=2",
    f"checkpoint.every_steps={EVERY}",
    "cloud.pool_out_s=1.0",
    "cluster.patience_s=2.0",
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def control_of(launched: Launched) -> ControlClient:
    """The control socket of the run's local cloud."""
    endpoint = json.loads((launched.folder / "endpoint.json").read_text())
    return ControlClient(Path(endpoint["cloud"]["control_path"]))


def lose_everything(bench: Bench, launched: Launched) -> ControlClient:
    """With a checkpoint complete: no capacity anywhere, and every instance goes."""
    run = launched.run
    saved = launched.folder / "checkpoints"
    wait_until(lambda: list(saved.glob("**/manifest.json")), what="a checkpoint", timeout_s=60.0)
    control = control_of(launched)
    control.refuse(code="InsufficientInstanceCapacity", count=10_000)
    for instance in _running(control):
        control.preempt(InstanceId(instance))
    over = ("restoring", "finished")
    wait_until(lambda: bench.json("status", run)["phase"] in over, what="parking", timeout_s=60.0)
    return control


def _running(control: ControlClient) -> Sequence[str]:
    return [str(i["instance"]) for i in control.instances() if i["state"] == "running"]


def receipt_of(launched: Launched) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((launched.folder / "receipt.json").read_text())
    return body


def test_it_waits_for_capacity_and_wakes_up(bench: Bench) -> None:
    with bench.launched("parked", *KEYS) as launched:
        control = lose_everything(bench, launched)
        assert "waiting for nodes: 0 of 2 are here" in bench.json("status", "parked")["sentence"]
        control.relent()
        assert launched.process.wait(timeout=100) == 0, launched.out.read_text()
    body = receipt_of(launched)
    (restored,) = body["reconfigurations"]
    assert restored["checkpoint"] is True
    assert 0 <= restored["steps_again"] <= 2 * EVERY
    assert "reconfiguration" in launched.out.read_text()
    assert bench.json("verify", "parked")["equal"] is True
    assert bench.json("verify", "parked", "--samples")["equal"] is True
    assert bench.json("verify", "parked", "--decisions")["equal"] is True


@pytest.mark.full
def test_waiting_has_an_end(bench: Bench) -> None:
    """After which what was saved is still there to go on from. `make test` shows such an end where
    nodes had notices (`test_kept`)."""
    with bench.launched("patient", *KEYS[1:], "cluster.park_s=4.0") as launched:
        lose_everything(bench, launched)
        assert launched.process.wait(timeout=60) == 3, launched.out.read_text()
    assert "too few nodes for cluster.park_s = 4 s" in receipt_of(launched)["sentence"]
    assert list((launched.folder / "checkpoints").glob("**/manifest.json"))
