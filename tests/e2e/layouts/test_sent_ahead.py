"""What a new layout needs is sent while everybody trains, and somebody is killed meanwhile.

Real processes and SIGKILL by pid; every run ends with the calm run's bits.
"""

import signal
from dataclasses import replace

import pytest

from bamboo.config.tree import JobConfig, ModelConfig
from bamboo.core.next_layout import feeds_under_way
from bamboo.core.state import Phase, State
from bamboo.topology.grid import Grid
from testbed.calm import assert_calm_so_far
from testbed.cluster import Cluster, cluster
from tests.e2e.history import restores, states
from tests.e2e.jobs import ENDLESS, job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

GROWN = Grid(pipelines=2, stages=2)


def slow_job(redundancy: str) -> JobConfig:
    """Two stages of some 60 MB of state: it takes a good part of a step."""
    settings = job(
        steps=ENDLESS,
        stages=2,
        pipelines=1,
        max_pipelines=2,
        virtual_nodes=2,
        redundancy=redundancy,
        device="virtual",
        virtual_forward_ms=(25.0,),
        virtual_backward_ms=(50.0,),
    )
    return replace(
        settings,
        model=ModelConfig(layers=2, width=640, heads=1, context=8),
        train=replace(settings.train, microbatch=8),
    )


def prepares(run: Cluster) -> State:
    """Wait until everybody who is to receive anything is being sent it."""
    return run.wait(lambda s: s.preparing is not None and len(s.preparing.receivers) == 2, 60, "it")


def grows(run: Cluster) -> None:
    run.wait(
        lambda s: (s.grid == GROWN and s.reconfiguration is None) or s.phase is Phase.FINISHED,
        90,
        "2 x 2",
    )
    assert run.state().grid == GROWN


@pytest.mark.parametrize(
    ("of", "steps"),
    [
        ("source", 0),
        pytest.param("receiver", 1, marks=pytest.mark.full),
        pytest.param("source", 1, marks=pytest.mark.full),
        pytest.param("receiver", 0, marks=pytest.mark.full),
    ],
)
def test_killed_while_it_is_sent(of: str, steps: int) -> None:
    """At once, or so many steps later; as many come as are lost, and then it grows all the same. A
    receiver that stands still for so long keeps it from being over before."""
    with cluster(slow_job("stash")) as run:
        run.start(2)
        run.wait_step(3)
        run.start(2)
        feed = feeds_under_way(prepares(run))[-1]
        run.processes[feed.receiver].signal(signal.SIGSTOP)
        run.wait_step(max(run.losses()) + steps)
        assert run.state().preparing is not None, "it was sent too soon to be disturbed"
        run.kill(feed.source if of == "source" else feed.receiver)
        if of == "source":
            run.processes[feed.receiver].signal(signal.SIGCONT)
        run.start(1)
        grows(run)
        assert_calm_so_far(run)
        assert not restores(run)
        assert any(
            s.reconfiguration is not None and s.reconfiguration.ahead is not None
            for s in states(run)
        )
