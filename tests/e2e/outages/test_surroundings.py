"""What is around the workers goes away for a while, or for good: the store, the agents."""

import os
import signal
import time

import pytest

from bamboo.core.state import NodeStatus
from bamboo.ids import NodeId
from testbed.calm import assert_calm, difference
from testbed.cluster import cluster
from testbed.waiting import wait_until
from tests.e2e.jobs import job
from tests.e2e.losses.test_notice import SLOW

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.mark.parametrize("lost", ["", "i-02.1"])
def test_training_goes_on_while_the_store_does_not_answer(lost: str) -> None:
    """A loss meanwhile is decided when the store is back."""
    with cluster(job(steps=12, redundancy="eager", **SLOW)) as run:
        run.start()
        run.wait_step(1)
        os.kill(run.server.pid, signal.SIGSTOP)
        away_s = time.time()
        try:
            if lost:
                run.kill(lost)
            back_s = time.monotonic() + 1.0
            wait_until(lambda: time.monotonic() >= back_s, what="a second without the store")
        finally:
            os.kill(run.server.pid, signal.SIGCONT)
        assert_calm(run)
        meanwhile = [r for r in run.metrics("step") if away_s <= r["t_s"] <= away_s + 1.0]
        assert lost or meanwhile, "steps were taken without the store"


def test_a_stopped_worker_is_given_up_and_changes_nothing_when_it_wakes() -> None:
    settings = SLOW | {"suspect_s": 0.5, "gone_s": 1.0}
    with cluster(job(steps=12, redundancy="eager", **settings)) as run:
        run.start()
        run.wait_step(2)
        stopped = run.processes["i-02.1"]
        stopped.signal(signal.SIGSTOP)
        gone = NodeStatus.GONE
        run.wait(lambda s: s.node(NodeId("i-02.1")).status is gone, 30, "the missed heartbeats")
        stopped.signal(signal.SIGCONT)
        state = run.finish()
        assert state.outcome == "done", run.report()
        assert not difference(run), run.report()
        assert run.statuses() == {"i-00.1": 0, "i-01.1": 0, "i-02.1": 3, "i-03.1": 0}


def test_a_worker_ends_with_its_agent() -> None:
    with cluster(job(steps=500)) as run:
        run.start()
        run.wait_step(1)
        run.end_agents()
        wait_until(
            lambda: None not in run.statuses().values(), what="the end of all workers", timeout_s=15
        )
        assert set(run.statuses().values()) == {-signal.SIGKILL}
