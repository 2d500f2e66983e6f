"""All nodes of a zone go at one instant; with neighbours in different zones nothing is restored.

Real processes and SIGKILL by pid; no checkpoints are written, and every run ends with the calm
run's bits.
"""

import pytest

from bamboo.core.events import Quiesced
from bamboo.core.state import Phase
from bamboo.topology.slots import Slot
from testbed.calm import assert_calm_so_far
from testbed.cluster import cluster
from tests.e2e.jobs import ENDLESS, job
from tests.e2e.losses.test_protected_again import protected

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.mark.parametrize(
    ("mode", "stages", "owned"),
    # Five stages over two zones: two neighbours lie in one, and one node keeps two replicas.
    [
        pytest.param("stash", 4, "abab", marks=pytest.mark.full),
        ("eager", 5, "ababa"),
    ],
)
def test_half_of_all_nodes_go_with_their_zone(mode: str, stages: int, owned: str) -> None:
    settings = job(
        steps=ENDLESS, redundancy=mode, stages=stages, spread="neighbours", check_replicas=True
    )
    with cluster(settings) as run:
        run.start(stages - stages // 2, zone="zone-a")
        run.start(stages // 2, zone="zone-b")
        run.wait_step(3)
        state = run.state()
        zones = {node.id: node.zone for node in state.nodes}
        assert state.assignment is not None
        assert "".join(zones[owner][-1] for owner in state.assignment.owners) == owned
        for stage in range(1, stages, 2):
            run.kill(run.owner(Slot(pipeline=0, stage=stage)))
        left = stages - stages // 2
        state = run.wait(
            lambda s: (len(s.live_nodes()) == left and protected(s)) or s.phase is Phase.FINISHED,
            40,
            "protection of all stages by those who are left",
        )
        assert protected(state), run.report()
        assert_calm_so_far(run)
        assert not any(isinstance(d.event, Quiesced) for d in run.decisions())
