"""Whole runs, agents and launcher included, whose store is read and takes nothing for a while."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from testbed.waiting import wait_until
from tests.launches.test_launch import Bench, Launched, bench

__all__ = ["bench"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

LEASE_S = 3.0
REFUSED_S = 2 * LEASE_S
RUN = (
    "cluster.stages=3",
    "cluster.standbys=1",
    'cluster.redundancy="stash"',
    "cluster.virtual_forward_ms=[3.0]",
    "cluster.virtual_backward_ms=[6.0]",
    f"cluster.gone_s={LEASE_S}",
)


@contextmanager
def refusing(launched: Launched) -> Iterator[None]:
    """The run's store is a replica of nobody's inside the `with` block."""
    url = json.loads((launched.folder / "endpoint.json").read_text())["store_url"]
    client: Any = redis.Redis.from_url(url)
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        yield
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")
        client.close()


def pass_s(length_s: float) -> None:
    """Let an outage last."""
    over_s = time.monotonic() + length_s
    wait_until(lambda: time.monotonic() >= over_s, what="the outage", timeout_s=length_s + 5)


def recorded(launched: Launched) -> int:
    """How many steps are in the books."""
    return len((launched.folder / "metrics.jsonl").read_text().splitlines())


def owner_of_stage_1(bench: Bench, run: str) -> dict[str, Any]:
    """By `bamboo status`."""
    found: list[dict[str, Any]] = bench.json("status", run)["nodes"]
    return next(node for node in found if "0.1" in node["owns"])


def wait_lost(bench: Bench, run: str, victim: dict[str, Any]) -> None:
    """Until somebody else owns what the victim owned."""
    wait_until(
        lambda: owner_of_stage_1(bench, run)["id"] != victim["id"], what="the loss", timeout_s=30.0
    )


def end(bench: Bench, launched: Launched, *, lost: int) -> dict[str, Any]:
    """Stop it, and see that it is equal and how many nodes it lost; the receipt."""
    assert bench.run("stop", launched.run).returncode == 0
    assert launched.wait() == 130, launched.out.read_text()
    receipt: dict[str, Any] = json.loads((launched.folder / "receipt.json").read_text())
    assert len(receipt["preemptions"]) == lost, receipt["preemptions"]
    assert bench.json("verify", launched.run)["equal"] is True
    return receipt


@pytest.mark.full
@pytest.mark.parametrize("when", ["calm", "loss", "reconfiguration"])
def test_a_store_refuses_while_a_node_is_taken(bench: Bench, when: str) -> None:
    """Just after its end, or while what it held is handed on; or none is."""
    with bench.launched("taken", *RUN) as launched:
        victim = owner_of_stage_1(bench, "taken")
        if when == "reconfiguration":
            assert bench.run("preempt", "taken", "--stage", "1", "--notice", "0").returncode == 0
        with refusing(launched):
            if when == "loss":
                os.kill(victim["pid"], signal.SIGKILL)
            pass_s(REFUSED_S)
        if when != "calm":
            wait_lost(bench, "taken", victim)
        before = recorded(launched)
        wait_until(lambda: recorded(launched) > before + 20, what="steps", timeout_s=30.0)
        end(bench, launched, lost=int(when != "calm"))
