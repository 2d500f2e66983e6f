"""A worker ends, and says why, where it could only go on half alive or for ever."""

import pytest

from testbed.calm import assert_calm
from testbed.cluster import cluster
from testbed.waiting import wait_until
from tests.e2e.jobs import job

pytestmark = pytest.mark.e2e
LONG = {"steps": 100_000, "redundancy": "stash"}


def test_a_log_that_takes_nothing_costs_its_notes_and_nothing_else() -> None:
    with cluster(job()) as run:
        # A link lies at the name of what the node notes: it is not followed.
        (run.directory / "events").mkdir()
        (run.directory / "events" / "i-02.1.jsonl").symlink_to("/dev/full")
        run.start()
        assert_calm(run)


def test_a_worker_that_comes_after_the_end_leaves() -> None:
    with cluster(job(steps=1)) as run:
        run.start()
        run.finish()
        late = run.start_one()
        wait_until(lambda: run.statuses()[late] is not None, what="its end", timeout_s=10)
        assert run.statuses()[late] == 0
        assert run.state().node(late) is None
