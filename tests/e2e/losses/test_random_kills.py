"""Kills by an outside process, by pid, at uniform random instants of the run.

Nothing in the workers knows of them, so they fall between any two machine instructions: while
sending, while a message of the dead is still on its way, while a failover is already running.
"""

import os
import random
import time

import pytest

from bamboo.core.events import CaughtUp, PeerLost
from bamboo.core.state import NodeStatus, Phase
from testbed.calm import assert_calm
from testbed.cluster import Cluster, cluster
from testbed.waiting import wait_until
from tests.e2e.jobs import job
from tests.e2e.losses.test_notice import SLOW

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1"))
PAIRS = ((0, 2), (2, 0), (1, 3), (3, 1))
"""Stages that are no neighbours, in a ring of four."""
MODES = ("stash", "gap", "eager", "full")
STEPS = 16
TRIES = 4


def begun(run: Cluster) -> float:
    run.wait(lambda s: s.phase is not Phase.FORMING, 30, "the beginning")
    return time.monotonic()


def at(instant_s: float) -> None:
    wait_until(
        lambda: time.monotonic() >= instant_s, what="the instant", timeout_s=60, poll_s=0.0005
    )


def at_progress(run: Cluster, steps: float) -> None:
    """Wait until that many steps were trained, their fraction by the time a step takes here."""
    start_s = begun(run)
    whole = int(steps)
    if whole:
        run.wait_step(whole - 1)
        start_s = time.monotonic()
    stamps = [record["t_s"] for record in run.metrics("step")]
    step_s = (stamps[-1] - stamps[0]) / (len(stamps) - 1) if len(stamps) > 1 else 0.1
    at(start_s + (steps - whole) * step_s)


@pytest.mark.parametrize(
    "seed",
    [
        *(f"{SEED}.{i}" for i in range(1)),
        *(pytest.param(f"{SEED}.{i}", marks=pytest.mark.full) for i in range(1, 25)),
    ],
)
def test_two_kills_at_random_instants(seed: str) -> None:
    draw = random.Random(seed)
    for _ in range(TRIES):
        mode, stages = draw.choice(MODES), draw.choice(PAIRS)
        instants = sorted(draw.uniform(0.0, STEPS) for _ in stages)
        with cluster(job(steps=STEPS, redundancy=mode)) as run:
            run.start()
            for stage, instant in zip(stages, instants, strict=True):
                at_progress(run, instant)
                run.kill(f"i-{stage:02d}.1")
            lost = run.wait(lambda s: s.phase is Phase.FINISHED, 60, "the end").nodes
            if sum(node.status is NodeStatus.GONE for node in lost) == len(stages):
                assert_calm(run)
                return
    raise AssertionError(f"in {TRIES} tries the run was always over before the second kill")


@pytest.mark.parametrize(
    "seed",
    [
        f"{SEED}.0",
        *(pytest.param(f"{SEED}.{i}", marks=pytest.mark.full) for i in range(1, 10)),
    ],
)
def test_the_second_kill_falls_into_the_first_failover(seed: str) -> None:
    draw = random.Random(seed)
    first, second = draw.choice(PAIRS)
    settings = SLOW | {"redundancy": draw.choice(MODES)}
    with cluster(job(steps=6, **settings)) as run:
        run.start()
        start_s = begun(run)
        at(start_s + draw.uniform(0.0, 0.6))
        run.kill(f"i-{first:02d}.1")
        run.wait(lambda s: s.phase is Phase.FAILING_OVER, 20, "the failover")
        run.kill(f"i-{second:02d}.1")
        assert_calm(run)
        events = [d.event for d in run.decisions()]
        lost = [i for i, e in enumerate(events) if isinstance(e, PeerLost)]
        caught_up = [i for i, e in enumerate(events) if isinstance(e, CaughtUp)]
        assert len(lost) == 2
        assert lost[1] < caught_up[0], "the first failover was over already"
