"""A node slower than its peers is replaced by a standby, or by a node that is started for it, while
the run trains, with the same bits.

The nodes' own reports are read as an agent and a launcher read them: nothing is made up.
"""

import json
import select
import socket
import struct

import pytest

from bamboo.controller.pace import PaceKeeper
from bamboo.core.effects import TerminateInstance
from bamboo.core.events import PeerLost, SpeedsMeasured
from bamboo.core.state import NodeStatus, Phase, State
from bamboo.core.straggler import kept_beyond
from bamboo.ids import NodeId
from testbed.calm import assert_calm, assert_calm_so_far
from testbed.cluster import Cluster, cluster
from testbed.waiting import wait_until
from tests.e2e.jobs import ENDLESS, job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

FAST_ZONE, SLOW_ZONE = "us-east-1a", "us-east-1b"
SETTINGS = {
    "device": "virtual",
    "virtual_forward_ms": (8.0,),
    "virtual_backward_ms": (16.0,),
    "virtual_speeds": (1.0, 0.5),
    "redundancy": "eager",
}
"""Sleeps so long that a loaded machine makes no fast node look slow."""


class Reports:
    """What the workers tell their agent, whose place this takes."""

    def __init__(self, run: Cluster) -> None:
        self._run, self._keeper = run, PaceKeeper(run.job.cluster)
        self._texts: dict[socket.socket, bytes] = {}
        self._nodes: dict[socket.socket, str] = {}

    def measure(self) -> State:
        """Read what there is, and say how fast the nodes are once that is known; the state."""
        state = self._run.state()
        for node, beat in self._read():
            self._keeper.told(state, node, beat)
        found = self._keeper.speeds(state)
        if found is not None:
            self._run.append(found)
        return state

    def close(self) -> None:
        for connection in self._texts:
            connection.close()

    def _read(self) -> list[tuple[str, dict]]:
        listener = self._run.agent_socket
        out = []
        for ready in select.select([listener, *self._texts], [], [], 0.0)[0]:
            if ready is listener:
                connection, _ = listener.accept()
                raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                pid = struct.unpack("3i", raw)[0]
                self._nodes[connection] = next(n for n, p in self._run.pids.items() if p == pid)
                self._texts[connection] = b""
                continue
            *lines, self._texts[ready] = (self._texts[ready] + ready.recv(1 << 16)).split(b"\n")
            out += [(self._nodes[ready], json.loads(line)) for line in lines]
        return out


def measure_until(run: Cluster, reports: Reports, done, what: str) -> State:
    def look() -> State | None:
        state = reports.measure()
        return state if done(state) or state.phase is Phase.FINISHED else None

    return wait_until(look, what=what, timeout_s=60, poll_s=0.5)


def given_back(run: Cluster) -> list[str]:
    """The nodes whose instances the fleet was told to end."""
    return [
        effect.instance + ".1"
        for decision in run.decisions()
        for effect in decision.effects
        if isinstance(effect, TerminateInstance)
    ]


def test_a_straggler_is_replaced_by_a_standby() -> None:
    with cluster(job(steps=ENDLESS, **SETTINGS)) as run:
        run.start(3, zone=FAST_ZONE)
        slow = NodeId(run.start_one(zone=SLOW_ZONE))
        run.wait(lambda s: s.assignment is not None, 30, "training")
        standby = run.start_one(zone=FAST_ZONE)
        state = run.wait(lambda s: s.node(NodeId(standby)) is not None, 30, "the standby")
        (slot,) = state.assignment.owned_by(slow)
        reports = Reports(run)
        state = measure_until(
            run, reports, lambda s: not s.node(slow).status.live, "the straggler's end"
        )
        assert state.node(slow).status is NodeStatus.LEFT, run.report()
        assert run.owner(slot) == standby
        assert_calm_so_far(run)
        reports.close()
        assert given_back(run) == [slow]
        assert not any(isinstance(d.event, PeerLost) for d in run.decisions())
        (found,) = run.metrics("failover")
        assert (found["planned"], found["recomputed"]) == (True, 0)


def test_without_a_standby_a_straggler_is_kept_until_there_is_one() -> None:
    """Whose fleet is asked for one node more, and starts it."""
    with cluster(job(steps=ENDLESS, **SETTINGS)) as run:
        run.start(3, zone=FAST_ZONE)
        slow = NodeId(run.start_one(zone=SLOW_ZONE))
        reports = Reports(run)
        state = measure_until(run, reports, kept_beyond, "one node more is wanted")
        (slot,) = state.assignment.owned_by(slow)
        said = [d.reason for d in run.decisions() if isinstance(d.event, SpeedsMeasured)]
        assert slow in said[-1], said
        assert said[-1].endswith("one node more is to take its place"), said
        assert (given_back(run), run.metrics("failover")) == ([], [])
        more = run.start_one(zone=FAST_ZONE)
        state = measure_until(
            run, reports, lambda s: not s.node(slow).status.live, "the straggler's end"
        )
        assert (state.node(slow).status, kept_beyond(state)) == (NodeStatus.LEFT, 0), run.report()
        assert run.owner(slot) == more
        assert_calm_so_far(run)
        reports.close()
        assert given_back(run) == [slow]
        assert not any(isinstance(d.event, PeerLost) for d in run.decisions())


@pytest.mark.full
def test_a_standby_that_is_as_slow_is_not_replaced_again() -> None:
    """Two standbys, both slow: the place changes hands once."""
    with cluster(job(steps=40, **SETTINGS)) as run:
        run.start(3, zone=FAST_ZONE)
        slow = NodeId(run.start_one(zone=SLOW_ZONE))
        run.wait(lambda s: s.assignment is not None, 30, "training")
        run.start(2, zone=SLOW_ZONE)
        run.wait(lambda s: len(s.nodes) == 6, 30, "the standbys")
        reports = Reports(run)
        measure_until(run, reports, lambda s: False, "the end")
        assert_calm(run)
        reports.close()
        assert given_back(run) == [slow]
        assert len(run.metrics("failover")) == 1
