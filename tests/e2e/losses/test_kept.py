"""Notices to all who hold a stage: the state is stored before they are taken, and nothing is lost.

Real processes, SIGKILL at the deadline, no checkpoint but the one of the emergency.
"""

import random
import time
from typing import Any

import pytest

from bamboo.core.events import CheckpointDone, NoticeReceived
from bamboo.core.liveness.patience import parked
from bamboo.ids import NodeId
from testbed.calm import assert_calm_so_far, difference
from testbed.cluster import Cluster, cluster
from testbed.waiting import wait_until
from tests.e2e.jobs import ENDLESS, job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

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
    with cluster(job(steps=ENDLESS, stages=2, **SLOW)) as run:
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
        assert_calm_so_far(run)


def drawn(seed: int) -> tuple[dict[str, Any], dict[str, float]]:
    """A run of 2 to 6 nodes, and notices to two of them, or to more where two alone take nothing
    that has no other home; each of 3 to 12 s."""
    rng = random.Random(seed)
    pipelines, stages = rng.choice(((1, 2), (1, 3), (1, 4), (2, 2), (3, 2), (2, 3)))
    settings = {
        "pipelines": pipelines,
        "stages": stages,
        "redundancy": rng.choice(("stash", "eager", "peer", "off")),
        "virtual_nodes": 4,
    }
    nodes = [f"i-{number:02d}.1" for number in range(pipelines * stages)]
    rng.shuffle(nodes)
    count = rng.choice((2, len(nodes)))
    return settings, {node: rng.uniform(3.0, 12.0) for node in nodes[:count]}


@pytest.mark.full
@pytest.mark.parametrize("seed", range(50))
def test_no_step_is_lost_whoever_has_a_notice(seed: int) -> None:
    settings, in_s = drawn(seed)
    with cluster(job(steps=150, **settings, **SLOW)) as run:
        run.start()
        run.wait_step(3)
        deadlines = notice(run, **in_s)
        for node, deadline_s in sorted(deadlines.items(), key=lambda item: item[1]):
            due(deadline_s)
            if run.processes[node].status() is None:
                run.kill(node)
                run.lost(node)
        run.start(len(in_s))
        state = run.finish()
        assert state.outcome == "done", run.report()
        assert not difference(run), f"{difference(run)}\n{run.report()}"
        assert not done_again(run), run.report()


def due(at_s: float) -> None:
    """Wait for a time of the clock."""
    wait_until(lambda: time.time() >= at_s, what="a deadline", timeout_s=60)


def done_again(run: Cluster) -> list[str]:
    """Decisions by which steps were done again."""
    return [d.reason for d in run.decisions() if "done again" in d.reason]
