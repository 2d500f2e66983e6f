"""The comparison with the calm run is worth something: every planted fault turns it red.

Each fault is one wrong thing in one process: what a mistake in the runtime would do.
"""

import pytest

from bamboo.config.tree import Kill
from testbed.calm import assert_calm, difference
from testbed.cluster import Cluster, cluster
from tests.e2e.jobs import job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

LOSE_STAGE_2 = Kill(step=5, stage=2, phase="backward", microbatch=5)


def test_the_honest_control_passes() -> None:
    with cluster(job(LOSE_STAGE_2)) as run:
        run.start()
        assert_calm(run)


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        (1, "stale_replica:4"),
        (1, "flipped_bit:act,5,3"),
        (2, "flipped_bit:ship,3,0"),
        (0, "wrong_order"),
        (3, "doubled_gradient:2,6"),
    ],
)
def test_a_planted_fault_shows(node: int, fault: str) -> None:
    with cluster(job(LOSE_STAGE_2)) as run:
        run.start(faults={node: fault})
        assert run.finish().outcome == "done", run.report()
        found = difference(run)
        assert found.startswith(("loss", "tensor")), found


def test_a_dropped_resend_is_a_stall_after_which_the_step_is_done_again() -> None:
    with cluster(job(LOSE_STAGE_2, step_timeout_s=2.0)) as run:
        run.start(faults={3: "dropped_resend"})
        assert_calm(run)
        assert stalls(run) == 1


def test_what_never_comes_ends_in_a_named_fault_and_never_in_a_hang() -> None:
    with cluster(job(step_timeout_s=2.0)) as run:
        run.start(faults={1: "never_sent:act,4,3"})
        state = run.finish(timeout_s=30)
        assert state.outcome == "fault"
        assert "made no progress at" in state.sentence
        assert stalls(run) == 2


def stalls(run: Cluster) -> int:
    """How often all stopped, or the run ended, because nothing came."""
    first = [d.reason.split(";")[0] for d in run.decisions()]
    return sum(words.startswith("node ") and "made no progress at" in words for words in first)


@pytest.mark.parametrize(("node", "fault"), [(1, "stale_replica:4"), (2, "flipped_bit:ship,4,0")])
def test_checked_replicas_find_the_fault_without_any_loss(node: int, fault: str) -> None:
    with cluster(job(check_replicas=True)) as run:
        run.start(faults={node: fault})
        state = run.finish()
        assert state.outcome == "fault"
        assert "replica of stage 2 (pipeline 0) differs from its owner after step 4" in (
            state.sentence
        )


def test_a_fault_in_the_last_step_is_found_too() -> None:
    with cluster(job(check_replicas=True, stages=2)) as run:
        run.start(faults={0: "stale_replica:7"})
        state = run.finish()
        assert state.outcome == "fault", state.sentence
        assert "differs from its owner after step 7" in state.sentence


def test_owner_and_shadow_are_equal_after_every_one_of_twenty_steps() -> None:
    steps = 20
    with cluster(job(steps=steps, check_replicas=True, redundancy="eager")) as run:
        run.start(faults=dict.fromkeys(range(4), f"noted_comparisons:{run.directory}"))
        assert_calm(run)
        lines = [
            line.split()
            for file in run.directory.glob("comparisons-*")
            for line in file.read_text().splitlines()
        ]
        compared = {(slot, int(step)) for slot, step in lines}
        assert compared == {(f"0.{p}", step) for p in range(4) for step in range(1, steps + 1)}
