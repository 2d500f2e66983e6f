"""A worker ends, and says why, where it could only go on half alive or for ever."""

import pytest

from tests.e2e.cluster import cluster
from tests.e2e.jobs import job
from tests.support import wait_until

pytestmark = pytest.mark.e2e
LONG = {"steps": 100_000, "redundancy": "stash"}


def test_a_file_that_takes_no_more_ends_the_run_with_its_reason() -> None:
    with cluster(job(**LONG)) as run:
        # What the node notes goes to a device that is always full.
        (run.directory / "events").mkdir()
        (run.directory / "events" / "i-02.1.jsonl").symlink_to("/dev/full")
        run.start()
        state = run.finish(timeout_s=30)
        assert state.outcome == "fault"
        assert "worker i-02.1 failed: OSError: [Errno 28]" in state.sentence


def test_a_worker_that_comes_after_the_end_leaves() -> None:
    with cluster(job(steps=1)) as run:
        run.start()
        run.finish()
        late = run.start_one()
        wait_until(lambda: run.statuses()[late] is not None, what="its end", timeout_s=10)
        assert run.statuses()[late] == 0
        assert run.state().node(late) is None
