"""What is around the workers goes away for a while, or for good: the store, the agents."""

import os
import signal
import time

import pytest

from tests.e2e.calm import assert_calm
from tests.e2e.cluster import cluster
from tests.e2e.jobs import job
from tests.e2e.test_notice import SLOW
from tests.support import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]


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


def test_a_worker_ends_with_its_agent() -> None:
    with cluster(job(steps=500)) as run:
        run.start()
        run.wait_step(1)
        run.end_agents()
        wait_until(
            lambda: None not in run.statuses().values(), what="the end of all workers", timeout_s=15
        )
        assert set(run.statuses().values()) == {1}
