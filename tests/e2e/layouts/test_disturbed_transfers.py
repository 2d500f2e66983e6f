"""What may happen while a replica is being made: its receiver goes or stands still, the store is
away, the next notices come. Slow links, so that it is really under way; the calm run's bits."""

import os
import signal
import time
from dataclasses import replace

import pytest

from bamboo.core.events import NoticeReceived, PeerLost
from bamboo.core.state import NodeStatus, Phase, State
from bamboo.ids import NodeId
from bamboo.topology.slots import Slot
from testbed.calm import assert_calm_so_far, difference
from testbed.cluster import Cluster, cluster
from testbed.waiting import wait_until
from tests.e2e.jobs import ENDLESS, job
from tests.e2e.losses.test_notice import SLOW
from tests.e2e.losses.test_protected_again import protected

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

STANDBY = NodeId("i-04.1")
NARROW = SLOW | {"virtual_link_gbps": 0.01}


def begun(run: Cluster, standbys: int = 1) -> None:
    """The four members and the standbys train, or stand by, and a few steps are done."""
    run.start(4)
    run.wait(lambda s: s.phase is Phase.RUNNING, 30, "the beginning")
    run.start(standbys)
    run.wait(lambda s: len(s.nodes) == 4 + standbys, 30, "the standbys")
    run.wait_step(1)


def receiving(state: State) -> bool:
    return any(t.receiver == STANDBY for t in state.transfers)


def lose_one(run: Cluster) -> None:
    """A loss; the standby begins to receive."""
    run.kill(run.owner(Slot(pipeline=0, stage=1)))
    run.wait(receiving, 20, "a transfer to the standby")


@pytest.mark.parametrize("mode", ["stash", pytest.param("eager", marks=pytest.mark.full)])
def test_the_receiver_is_killed(mode: str) -> None:
    with cluster(job(steps=ENDLESS, redundancy=mode, **NARROW)) as run:
        begun(run)
        lose_one(run)
        run.kill(STANDBY)
        state = run.wait(lambda s: protected(s) or s.phase is Phase.FINISHED, 40, "protection")
        assert protected(state), run.report()
        assert_calm_so_far(run)


def test_the_receiver_stands_still_past_its_lease() -> None:
    with cluster(job(steps=14, redundancy="eager", **NARROW)) as run:
        begun(run)
        lose_one(run)
        stopped = run.processes[STANDBY]
        stopped.signal(signal.SIGSTOP)
        run.append(PeerLost(node=STANDBY, reporter="agent", cause="lease"))
        state = run.wait(lambda s: protected(s) or s.phase is Phase.FINISHED, 40, "protection")
        assert protected(state), run.report()
        stopped.signal(signal.SIGCONT)
        state = run.finish()
        assert state.outcome == "done", run.report()
        assert not difference(run), run.report()
        assert run.statuses()[STANDBY] == 3, "it found itself fenced"


def test_the_store_is_away_meanwhile() -> None:
    """The replica is made all the same; that it is one is decided when the store is back."""
    narrower = NARROW | {"virtual_link_gbps": 0.002}
    wide = job(steps=ENDLESS, redundancy="eager", **narrower)
    wide = replace(wide, model=replace(wide.model, width=64))  # so that sending it takes seconds
    with cluster(wide) as run:
        begun(run)
        lose_one(run)
        # A store that goes before all have heard of the loss keeps them waiting, and so does one
        # that goes in the moment in which a slot changes hands: that is no step.
        run.wait(lambda s: receiving(s) and not (s.failovers or s.moves), 20, "the failover's end")
        os.kill(run.server.pid, signal.SIGSTOP)
        away_s = time.time()
        try:
            end_s = time.monotonic() + 4.0
            wait_until(lambda: time.monotonic() >= end_s, what="the outage's end")
        finally:
            back_s = time.time()
            os.kill(run.server.pid, signal.SIGCONT)
        state = run.wait(lambda s: protected(s) or s.phase is Phase.FINISHED, 40, "protection")
        assert protected(state), run.report()
        assert_calm_so_far(run)
        meanwhile = [r for r in run.metrics("step") if away_s <= r["t_s"] < back_s]
        assert meanwhile, "steps were taken without the store"


def test_two_notices_at_once_and_two_standbys() -> None:
    """Neighbours have to go together: both hand over, nothing is computed again."""
    with cluster(job(steps=ENDLESS, redundancy="eager", **NARROW)) as run:
        begun(run, standbys=2)
        leavers = [NodeId(run.owner(Slot(pipeline=0, stage=stage))) for stage in (1, 2)]
        for node in leavers:
            run.append(NoticeReceived(node=node, deadline_s=2e9))
        left = NodeStatus.LEFT
        state = run.wait(
            lambda s: (
                all(n.status is left for n in s.nodes if n.id in leavers)
                or s.phase is Phase.FINISHED
            ),
            40,
            "both hand-overs",
        )
        assert state.phase is not Phase.FINISHED, run.report()
        state = run.wait(lambda s: protected(s) or s.phase is Phase.FINISHED, 40, "protection")
        assert protected(state), run.report()
        assert state.assignment is not None
        assert len(set(state.assignment.owners)) == 4
        assert_calm_so_far(run)
        assert all(found["planned"] for found in run.metrics("failover"))
