"""Pipelines come and go, stages are cut anew, whole groups of nodes are lost at one instant.

Real processes and SIGKILL by pid; every run ends with the calm run's bits.
"""

import os
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from bamboo.config.tree import CheckpointConfig
from bamboo.core.events import LayoutBuilt, Pace, PaceMeasured, Reconsider
from bamboo.core.next_layout import layers_by_node
from bamboo.core.rounds import fed_layers
from bamboo.core.state import Phase, State
from bamboo.models import build_layer, build_model
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from testbed.calm import assert_calm_so_far
from testbed.cluster import Cluster, cluster, protected
from tests.e2e.history import bases, restores, states
from tests.e2e.jobs import ENDLESS, job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1"))
EVERY = 5
WRITING = 5
"""Steps of some 15 ms that a checkpoint takes to be written, behind them."""


def trains(run: Cluster, grid: Grid, timeout_s: float = 60.0) -> State:
    """Wait until the run trains on this grid."""
    return run.wait(
        lambda s: (s.grid == grid and s.reconfiguration is None) or s.phase is Phase.FINISHED,
        timeout_s,
        f"a grid {grid.pipelines} x {grid.stages}",
    )


def test_pipelines_one_two_three_one() -> None:
    """D 1 -> 2 -> 3 as nodes come, -> 1 as they are lost; only what is missing is sent."""
    settings = job(
        steps=ENDLESS, stages=2, pipelines=1, max_pipelines=3, virtual_nodes=4, redundancy="stash"
    )
    with cluster(settings) as run:
        run.start(2)
        run.wait_step(5)
        for pipelines in (2, 3):
            run.start(2)
            trains(run, Grid(pipelines=pipelines, stages=2))
            run.wait_step(max(run.losses()) + 3)
        state = run.state()
        assert state.assignment is not None
        for pipeline in (1, 2):
            for slot in Grid(pipelines=3, stages=2).pipeline(pipeline):
                run.kill(state.assignment.owner(slot))
        trains(run, Grid(pipelines=1, stages=2))
        assert_calm_so_far(run)
        assert not restores(run)
        _moved_least(run)


def _moved_least(run: Cluster) -> None:
    """12 bytes a parameter of each layer that a node must hold and did not hold, whether it was
    sent while all trained or while all stood; the gradients that it followed are counted apart."""
    for before, after in pairwise(states(run)):
        if (
            before.reconfiguration is None
            or after.reconfiguration is not None
            or before.reconfiguration.base is None
        ):
            continue
        assert before.assignment is not None
        reconfiguration, layers = before.reconfiguration, _layer_bytes(run)
        held = {
            r.node: {x for h in r.holdings for x in range(h.first, h.stop)}
            - fed_layers(reconfiguration.ahead, r.node)
            for r in reconfiguration.reports
        }
        needs = layers_by_node(before.assignment, before.cut)
        least = sum(layers[x] for n, need in needs.items() for x in need - held.get(n, set()))
        last = next(d for d in run.decisions() if d.version == after.version)
        assert isinstance(last.event, LayoutBuilt)
        sent = sum(one.bytes for one in reconfiguration.rebuilt) + last.event.bytes
        ahead = () if reconfiguration.ahead is None else reconfiguration.ahead.prepared
        assert sent + sum(size for _, size in ahead) == least
        assert sent == 0 or not reconfiguration.planned, "nobody stands while state is sent"


def _layer_bytes(run: Cluster) -> list[int]:
    workload = build_model(run.job)
    built = [build_layer(workload, i, 0) for i in range(len(workload.layers))]
    return [12 * sum(p.numel() for p in layer.parameters()) for layer in built]


def test_stages_four_two_four() -> None:
    """Two of four nodes go and nobody comes: two stages; later two come: four again."""
    with cluster(job(steps=ENDLESS, redundancy="stash")) as run:
        run.start()
        run.wait_step(5)
        for stage in (1, 3):
            run.kill(run.owner(Slot(pipeline=0, stage=stage)))
            run.wait_step(max(run.losses()) + 5)
        run.wait(protected, 60, "protection")  # a node that still gets replicas does not stop
        run.append(Reconsider(reporter="fleet", reason="no node came"))
        trains(run, Grid(pipelines=1, stages=2))
        run.wait_step(max(run.losses()) + 5)
        run.start(2)
        trains(run, Grid(pipelines=1, stages=4))
        assert_calm_so_far(run)
        assert not restores(run)
        _moved_least(run)


def test_who_comes_after_a_new_layout_has_it_too() -> None:
    """D 1 -> 2, a node of the second pipeline is lost, and one that was not there when the layout
    was made takes its slot."""
    settings = job(steps=ENDLESS, stages=2, pipelines=1, max_pipelines=2, redundancy="stash")
    with cluster(settings) as run:
        run.start(2)
        run.wait_step(3)
        run.start(2)
        trains(run, Grid(pipelines=2, stages=2))
        run.wait_step(max(run.losses()) + 2)
        slot = Slot(pipeline=1, stage=1)
        run.kill(run.owner(slot))
        late = run.start_one()
        run.wait(
            lambda s: (
                s.phase is Phase.FINISHED
                or (s.assignment is not None and late in s.assignment.owners)
            ),
            60,
            "the late node owns a slot",
        )
        assert run.owner(slot) == late
        assert_calm_so_far(run)


def test_two_neighbours_at_one_instant_of_two_pipelines() -> None:
    """Owner and shadow of a stage are gone: the other pipeline has it, no checkpoint is read."""
    settings = job(steps=ENDLESS, stages=3, pipelines=2, redundancy="eager")
    settings = replace(settings, checkpoint=CheckpointConfig(every_steps=EVERY))
    with cluster(settings) as run:
        run.start(8)
        run.wait_step(12)
        nodes = [run.owner(Slot(pipeline=0, stage=stage)) for stage in (1, 2)]
        for node in nodes:
            run.kill(node)
        for node in nodes:
            run.wait_lost(node)
        run.wait(lambda s: s.reconfiguration is None, 60, "the new layout")
        assert_calm_so_far(run)
        assert not restores(run)


@pytest.mark.parametrize(
    ("seed", "kills"),
    [(1, 2), *(pytest.param(seed, 20, marks=pytest.mark.full) for seed in (1, 2))],
)
def test_random_kills_without_replicas(seed: int, kills: int) -> None:
    """Mode peer, two pipelines, a new node for each that is lost."""
    draw = random.Random(SEED * 1000 + seed)
    settings = job(steps=ENDLESS, stages=2, pipelines=2, redundancy="peer")
    with cluster(settings) as run:
        run.start(5)
        for kill in range(kills):
            run.wait_step(max(run.losses(), default=0) + draw.randint(2, 6))
            state = trains(run, Grid(pipelines=2, stages=2))
            assert state.phase is not Phase.FINISHED, f"it was over before kill {kill}"
            assert state.assignment is not None
            lost = draw.choice(sorted(state.assignment.members()))
            run.kill(lost)
            run.start_one()
            run.wait_lost(lost)
        trains(run, Grid(pipelines=2, stages=2))
        assert_calm_so_far(run)


@pytest.mark.parametrize(
    ("mode", "taken"),
    [("stash", (1, 2)), pytest.param("off", (0, 1, 2, 3), marks=pytest.mark.full)],
)
def test_many_at_one_instant_and_a_checkpoint(mode: str, taken: tuple[int, ...]) -> None:
    """Half of the nodes, neighbours, or all of them: restored when others are there."""
    settings = replace(
        job(steps=ENDLESS, redundancy=mode), checkpoint=CheckpointConfig(every_steps=EVERY)
    )
    with cluster(settings) as run:
        run.start()
        run.wait(lambda s: len(s.checkpoints) >= 2, 60, "two checkpoints")
        run.wait_step(max(run.losses()) + 2)
        nodes = [run.owner(Slot(pipeline=0, stage=stage)) for stage in taken]
        for node in nodes:
            run.kill(node)
        if len(taken) == 4:
            for node in nodes:  # nobody is left to miss them: the fleet does
                run.lost(node)
        run.wait(lambda s: s.reconfiguration is not None, 30, "the restore")
        reached = max(run.losses()) + 1
        run.start(len(taken))
        run.wait(lambda s: s.reconfiguration is None, 60, "training again")
        assert_calm_so_far(run)
        assert len(restores(run)) >= 1
        assert reached - bases(run)[0] <= EVERY + WRITING


def test_pipelines_of_unequal_speed_get_uneven_shares() -> None:
    """One of two pipelines has a third of the speed: of eight virtual nodes it gets two."""
    settings = job(steps=ENDLESS, stages=2, pipelines=2, virtual_nodes=8, redundancy="stash")
    with cluster(settings) as run:
        run.start(4)
        run.wait_step(3)
        state = run.state()
        assert state.assignment is not None
        slow = {state.assignment.owner(slot) for slot in state.grid.pipeline(1)}
        paces = tuple(
            Pace(node=node, microbatch_s=0.03 if node in slow else 0.01)
            for node in state.assignment.owners
        )
        run.append(PaceMeasured(reporter="test", era=state.era, paces=paces))
        run.wait(lambda s: s.shares == (6, 2) or s.phase is Phase.FINISHED, 30, "uneven shares")
        assert run.state().shares == (6, 2)
        assert_calm_so_far(run)
