"""After a loss every slot is protected again, and a standby brings the run back to full strength.

Real processes and SIGKILL by pid; every run ends with the calm run's bits.
"""

import pytest

from bamboo.coord.driver import read_begin
from bamboo.core.events import CaughtUp, PeerLost, ReplicaJoined, Yielded
from bamboo.core.machine import transition
from bamboo.core.state import Phase, State
from bamboo.topology.slots import Slot
from testbed.calm import assert_calm_so_far
from testbed.cluster import Cluster, cluster, protected
from tests.e2e.jobs import ENDLESS, job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

WITHIN_STEPS = 2
PACED = {"device": "virtual", "virtual_forward_ms": (8.0,), "virtual_backward_ms": (16.0,)}
"""A step takes about 0.3 s: a claim in steps is not one about how busy this machine is."""


def lose(run: Cluster, node: str) -> State:
    """Kill a node and wait until every slot is protected again."""
    run.kill(node)
    run.wait_lost(node)
    return run.wait(lambda s: protected(s) or s.phase is Phase.FINISHED, 30, "protection")


def exposed_steps(run: Cluster) -> list[int]:
    """Of each loss, how many steps after the hit one every slot had a shadow again."""
    begin = read_begin(run.store)
    state, hit, out = begin.state, None, []
    for decision in run.decisions():
        state = transition(state, decision.event, now_s=decision.now_s, policy=begin.policy).state
        if isinstance(decision.event, PeerLost) and state.failovers:
            hit = -1
        if isinstance(decision.event, CaughtUp) and hit == -1:
            hit = decision.event.step
        bare = state.assignment is None or None in state.assignment.shadows
        if isinstance(decision.event, ReplicaJoined) and hit is not None and not bare:
            out.append(decision.event.step - hit if hit >= 0 else 0)
            hit = None
    return out


@pytest.mark.parametrize("mode", ["stash", pytest.param("eager", marks=pytest.mark.full)])
def test_a_loss_and_later_its_neighbour(mode: str) -> None:
    """Four nodes, no standby: the second loss is survived because the first was made good."""
    with cluster(job(steps=ENDLESS, redundancy=mode, check_replicas=True)) as run:
        run.start()
        run.wait_step(3)
        state = lose(run, run.owner(Slot(pipeline=0, stage=1)))
        assert protected(state), run.report()
        state = lose(run, run.owner(Slot(pipeline=0, stage=2)))
        assert protected(state), run.report()
        assert_calm_so_far(run)


def test_a_standby_takes_the_lost_slot_and_full_strength_is_back() -> None:
    """4 stages + 1 standby: a loss, then that of its neighbour, then another standby."""
    with cluster(job(steps=ENDLESS, redundancy="eager", check_replicas=True, **PACED)) as run:
        run.start(5)
        run.wait_step(3)
        state = lose(run, run.owner(Slot(pipeline=0, stage=1)))
        assert protected(state), run.report()
        assert state.assignment is not None
        assert len(set(state.assignment.owners)) == 4
        neighbour = run.owner(Slot(pipeline=0, stage=2))
        state = lose(run, neighbour)
        assert protected(state), run.report()
        before = run.state().version
        run.start_one()

        def at_full_strength(state: State) -> bool:
            assignment = state.assignment
            return protected(state) and assignment is not None and len(set(assignment.owners)) == 4

        run.wait(lambda s: at_full_strength(s) or s.phase is Phase.FINISHED, 30, "full strength")
        # By the log: who only looks now and then may come when the run is over.
        since = [d.state for d in run.decisions() if d.version > before]
        assert any(map(at_full_strength, since)), run.report()
        assert_calm_so_far(run)
        assert any(isinstance(d.event, Yielded) for d in run.decisions())
        exposed = exposed_steps(run)
        assert len(exposed) == 2
        assert max(exposed) <= WITHIN_STEPS, run.report()
