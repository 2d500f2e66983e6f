"""Notices to all who hold a stage: the state is stored before they are taken, and nothing is lost.

Real processes, SIGKILL at the deadline, no checkpoint but the one of the emergency.
"""

import time

import pytest

from bamboo.core.events import CheckpointDone, NoticeReceived
from bamboo.core.patience import parked
from bamboo.ids import NodeId
from tests.e2e.calm import assert_calm
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.jobs import job
from tests.support import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

SLOW = {"device": "virtual", "virtual_forward_ms": (4.0,), "virtual_backward_ms": (8.0,)}


def notice(run: Cluster, **in_s: float) -> dict[str, float]:
    """Each of these will be taken so soon; the deadlines."""
    now_s = time.time()
    deadlines = {node: now_s + s for node, s in in_s.items()}
    for node, deadline_s in deadlines.items():
        run.append(NoticeReceived(node=NodeId(node), deadline_s=deadline_s))
    return deadlines


def take(run: Cluster, deadlines: dict[str, float]) -> None:
    """Kill each at its deadline."""
    for node, deadline_s in sorted(deadlines.items(), key=lambda item: item[1]):
        wait_until(lambda at_s=deadline_s: time.time() >= at_s, what=f"{node} is due", timeout_s=60)
        run.kill(node)
        run.lost(node)


def test_both_nodes_of_a_run_will_be_taken() -> None:
    with cluster(job(steps=60, stages=2, **SLOW)) as run:
        run.start()
        run.wait_step(3)
        begun_s = time.time()
        deadlines = notice(run, **{"i-00.1": 4.0, "i-01.1": 4.5})
        take(run, deadlines)
        state = run.wait(lambda s: parked(s) and not s.roll.live, 20, "nobody is left")
        (kept,) = [d for d in run.decisions() if isinstance(d.event, CheckpointDone)]
        assert kept.now_s < deadlines["i-00.1"], "it stands before the first one is taken"
        assert kept.now_s - begun_s > 2.0, "they have trained on"
        (made,) = state.checkpoints
        assert made.step == max(run.losses()) + 1, "no step that was taken is lost"
        run.start(2)
        assert_calm(run)
