"""A preemption with notice: the shadow goes on at a step boundary, and nothing is recomputed."""

import contextlib
import time
from collections.abc import Iterator

import pytest

from bamboo.core.events import CaughtUp, HandedOver, NoticeReceived, PeerLost
from bamboo.core.state import NodeStatus
from bamboo.ids import NodeId
from bamboo.topology.slots import Slot
from testbed.calm import assert_calm
from testbed.cluster import Cluster, cluster
from tests.e2e.jobs import job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SLOW = {"device": "virtual", "virtual_forward_ms": (4.0,), "virtual_backward_ms": (8.0,)}
"""A step takes about 0.15 s, so that what the test does falls inside one."""


@contextlib.contextmanager
def inside_a_step(run: Cluster) -> Iterator[None]:
    """Inside of this the owner of stage 2 stands in the midst of a step of a run that it starts."""
    run.start(faults={2: f"held:backward,3,{run.directory}"})
    with run.held():
        yield


def notice(run: Cluster, node: str) -> None:
    run.append(NoticeReceived(node=NodeId(node), deadline_s=time.time() + 30))


@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        (2, {"redundancy": "stash"}),
        (3, {"redundancy": "full", "transport": "tcp"}),
        (1, {"redundancy": "gap", "pipelines": 2, "stages": 2, "tied": True}),
    ],
    ids=str,
)
def test_the_shadow_takes_over_at_a_step_boundary(stage: int, settings: dict[str, object]) -> None:
    with cluster(job(**settings)) as run:
        run.start()
        run.wait_step(2)
        leaver = run.owner(Slot(pipeline=0, stage=stage))
        notice(run, leaver)
        assert_calm(run)
        state = run.state()
        assert state.node(NodeId(leaver)).status is NodeStatus.LEFT
        assert any(isinstance(d.event, HandedOver) for d in run.decisions())
        (found,) = run.metrics("failover")
        assert (found["slot"], found["planned"]) == (f"0.{stage}", True)
        assert found["recomputed"] == 0


def test_the_instance_goes_before_the_hand_over() -> None:
    with cluster(job(**SLOW)) as run:
        with inside_a_step(run):
            notice(run, "i-02.1")
            run.kill("i-02.1")
        assert_calm(run)
        (found,) = run.metrics("failover")
        assert (found["slot"], found["planned"]) == ("0.2", False)


def test_the_shadow_goes_before_the_hand_over() -> None:
    """The draining node has nobody to hand over to any more: it trains on, until its stage has a
    shadow again, and hands over to that."""
    with cluster(job(**SLOW)) as run:
        with inside_a_step(run):
            notice(run, "i-02.1")
            run.kill("i-01.1")
            run.wait_lost("i-01.1", 10)
        assert_calm(run)
        slot = Slot(pipeline=0, stage=2)
        # Which of the two that are left has it hangs on what each of them shadowed by then.
        left = ("i-00.1", "i-03.1")
        assert run.owner(slot) in left, "\n".join(d.reason for d in run.decisions())
        drained = run.state().node(NodeId("i-02.1"))
        assert drained is not None
        assert drained.status is NodeStatus.LEFT


def test_two_neighbours_get_their_notice_together() -> None:
    """Only one of them may go: the other holds the only copy."""
    with cluster(job(**SLOW)) as run:
        with inside_a_step(run):
            notice(run, "i-02.1")
            notice(run, "i-01.1")
        assert_calm(run)
        left = [n.id for n in run.state().nodes if n.notice_deadline_s and n.status != "left"]
        assert len(left) <= 1


def test_a_notice_then_a_loss_elsewhere() -> None:
    with cluster(job(redundancy="eager", **SLOW)) as run:
        with inside_a_step(run):
            notice(run, "i-02.1")
            run.kill("i-00.1")
        assert_calm(run)
        events = [d.event for d in run.decisions()]
        assert sum(isinstance(e, PeerLost) for e in events) == 1
        assert sum(isinstance(e, CaughtUp) for e in events) == 2


def test_a_node_without_a_slot_just_leaves() -> None:
    with cluster(job()) as run:
        run.start(5)
        run.wait_step(1)
        spare = next(n.id for n in run.state().nodes if n.status is NodeStatus.READY)
        notice(run, spare)
        run.wait(lambda s: s.node(spare).status is NodeStatus.LEFT, 10, "the spare's leaving")
        assert_calm(run)
