"""A slot changes hands where a checkpoint is due: the checkpoint becomes complete all the same."""

import time
from dataclasses import replace

import pytest

from bamboo.config.tree import CheckpointConfig, Kill
from bamboo.core.events import CheckpointDone, NoticeReceived
from bamboo.core.state import NodeStatus
from bamboo.ids import NodeId
from bamboo.topology.slots import Slot
from testbed.calm import assert_calm
from testbed.cluster import Cluster, cluster
from tests.e2e.jobs import job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EVERY = 5
SLOW = {"device": "virtual", "virtual_forward_ms": (4.0,), "virtual_backward_ms": (8.0,)}
"""A step takes about 0.15 s, and a shard is stored long before the next checkpoint is due."""


def done(run: Cluster) -> list[int]:
    """Steps whose checkpoint was completed, in the order of the log."""
    return [d.event.step for d in run.decisions() if isinstance(d.event, CheckpointDone)]


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.full), 3])
def test_an_owner_is_killed_before_its_part_is_stored(stage: int) -> None:
    kill = Kill(step=EVERY, stage=stage, phase="forward")
    settings = job(kill, steps=3 * EVERY, **SLOW)
    with cluster(replace(settings, checkpoint=CheckpointConfig(every_steps=EVERY))) as run:
        run.start()
        assert_calm(run)
        assert EVERY in done(run)


def test_an_owner_with_a_notice_hands_over_where_one_is_due() -> None:
    settings = job(steps=5 * EVERY, **SLOW)
    with cluster(replace(settings, checkpoint=CheckpointConfig(every_steps=EVERY))) as run:
        run.start()
        run.wait_step(EVERY - 1)
        leaver = run.owner(Slot(pipeline=0, stage=1))
        run.append(NoticeReceived(node=NodeId(leaver), deadline_s=time.time() + 30))
        assert_calm(run)
        assert run.state().node(NodeId(leaver)).status is NodeStatus.LEFT
        assert done(run) == [EVERY, 2 * EVERY, 3 * EVERY, 4 * EVERY]
