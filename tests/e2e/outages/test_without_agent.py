"""A worker that finds no agent ends with its instance, and the run goes on without it."""

import signal

import pytest

from testbed.calm import assert_calm
from testbed.cluster import cluster
from testbed.waiting import wait_until
from tests.e2e.jobs import job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def test_its_agent_was_killed_while_it_started() -> None:
    with cluster(job(steps=12)) as run:
        run.start()
        run.wait_step(1)
        (run.directory / "agent").unlink()
        node = run.start_one()
        late = run.processes[node]
        wait_until(lambda: late.status() is not None, what="its end", timeout_s=60.0)
        assert late.status() == -signal.SIGKILL
        run.killed.add(node)
        assert_calm(run)
