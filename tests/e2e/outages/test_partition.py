"""Nodes that reach the store but not each other: one of two goes, and the run goes on.

Each tells the members that the other is lost. The first report that is committed decides; whoever
is gone by it finds itself fenced, its own report counts no more, and it changes nothing.
"""

import pytest

from bamboo.coord.replay import verify_decisions
from bamboo.core.events import PeerLost
from bamboo.core.state import NodeStatus
from testbed.calm import difference
from testbed.cluster import Cluster, cluster
from tests.e2e.jobs import job
from tests.e2e.losses.test_notice import SLOW

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

FENCED_STATUS = 3


def begun(run: Cluster, *apart: tuple[int, int]) -> None:
    """Four workers that train, of which those pairs cannot reach each other any more."""
    file = run.directory / "cut"
    faults = {}
    for index in range(4):
        others = [b if a == index else a for a, b in apart if index in {a, b}]
        if others:
            names = ",".join(f"i-{other:02d}.1" for other in others)
            faults[index] = f"partition:{file},{names}"
    run.start(faults=faults)
    run.wait_step(2)
    file.touch()


def gone(run: Cluster) -> list[str]:
    return [n.id for n in run.state().nodes if n.status is NodeStatus.GONE]


@pytest.mark.parametrize(
    ("pair", "mode"),
    [
        ((1, 2), "eager"),
        ((0, 3), "eager"),
        *(
            pytest.param(pair, mode, marks=pytest.mark.full)
            for pair, mode in (((1, 2), "stash"), ((0, 2), "stash"), ((0, 3), "stash"))
        ),
    ],
    ids=str,
)
def test_of_two_that_do_not_reach_each_other_one_goes(pair: tuple[int, int], mode: str) -> None:
    with cluster(job(steps=12, redundancy=mode, **SLOW)) as run:
        begun(run, pair)
        state = run.finish()
        assert state.outcome == "done", run.report()
        (loser,) = gone(run)
        assert loser in {f"i-{index:02d}.1" for index in pair}
        assert run.statuses()[loser] == FENCED_STATUS
        assert not difference(run), f"{difference(run)}\n{run.report()}"
        assert sum(isinstance(d.event, PeerLost) for d in run.decisions()) == 1
        report = verify_decisions(run.store)
        assert report.equal, report.first_difference


@pytest.mark.parametrize("index", [pytest.param(0, marks=pytest.mark.full), 2])
def test_a_node_that_reaches_nobody_goes_alone(index: int) -> None:
    """It reaches the fewest, so it lets the others speak first."""
    with cluster(job(steps=12, redundancy="eager", **SLOW)) as run:
        begun(run, *((index, other) for other in range(4) if other != index))
        state = run.finish()
        assert state.outcome == "done", run.report()
        assert gone(run) == [f"i-{index:02d}.1"], run.report()
        assert run.statuses()[f"i-{index:02d}.1"] == FENCED_STATUS
        assert not difference(run), f"{difference(run)}\n{run.report()}"
