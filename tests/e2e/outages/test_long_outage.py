"""The store may be away for longer than a step may take: what waits for it is no standstill."""

import os
import signal
import time

import pytest

from testbed.calm import assert_calm_so_far
from testbed.cluster import cluster
from testbed.waiting import wait_until
from tests.e2e.jobs import ENDLESS, job

pytestmark = pytest.mark.e2e
STEP_TIMEOUT_S = 2.0


def test_a_loss_that_waits_for_its_decision_is_no_standstill() -> None:
    with cluster(job(steps=ENDLESS, step_timeout_s=STEP_TIMEOUT_S)) as run:
        run.start()
        run.wait_step(2)
        os.kill(run.server.pid, signal.SIGSTOP)
        try:
            run.kill("i-02.1")
            back_s = time.monotonic() + 2.5 * STEP_TIMEOUT_S
            wait_until(lambda: time.monotonic() >= back_s, what="the outage")
        finally:
            os.kill(run.server.pid, signal.SIGCONT)
        run.wait_lost("i-02.1")
        assert_calm_so_far(run)
