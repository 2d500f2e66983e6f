"""Notices as the cloud gives them: kept, not kept, too early, many at once.

Real processes and SIGKILL by pid; every run ends with the calm run's bits. What is checked beside
them: who left in order, that nothing was computed again, and what was sent to whom.
"""

import random
import time
from collections.abc import Iterable
from dataclasses import replace

import pytest

from bamboo.config.tree import CheckpointConfig
from bamboo.core.events import CaughtUp, LayoutBuilt, NoticeReceived, ReplicaJoined
from bamboo.core.state import NodeStatus, Phase, State
from bamboo.ids import NodeId
from bamboo.models import build_layer, build_model
from bamboo.topology.slots import Slot
from testbed.calm import assert_calm, assert_calm_so_far
from testbed.cluster import Cluster, cluster
from testbed.waiting import wait_until
from tests.e2e.history import restores
from tests.e2e.jobs import ENDLESS, job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SLOW = {"device": "virtual", "virtual_forward_ms": (4.0,), "virtual_backward_ms": (8.0,)}
"""A step takes about 0.15 s, so that a drain takes a while."""


def notice(run: Cluster, *nodes: str, in_s: float = 30.0) -> None:
    """The cloud says that it takes these."""
    for node in nodes:
        run.append(NoticeReceived(node=NodeId(node), deadline_s=time.time() + in_s))


def owners(run: Cluster, stages: Iterable[int]) -> list[str]:
    return [run.owner(Slot(pipeline=0, stage=stage)) for stage in stages]


def wait_left(run: Cluster, *nodes: str) -> State:
    """Until all of them have gone in order."""

    def left(state: State) -> bool:
        away = {n.id for n in state.nodes if n.status is NodeStatus.LEFT}
        return away.issuperset(nodes) or state.phase is Phase.FINISHED

    state = run.wait(left, 60, f"{', '.join(nodes)} have left")
    assert state.phase is not Phase.FINISHED, run.report()
    return state


def at_full_strength(run: Cluster, nodes: int) -> State:
    """Until so many nodes have a slot each, with a shadow, and nothing is under way."""

    def full(state: State) -> bool:
        busy = state.failovers or state.transfers or state.moves or state.reconfiguration
        whole = state.assignment is not None and len(set(state.assignment.owners)) == nodes
        return state.phase is Phase.FINISHED or (
            state.phase is Phase.RUNNING and whole and not busy
        )

    state = run.wait(full, 60, "full strength")
    assert state.phase is not Phase.FINISHED, run.report()
    return state


def again(run: Cluster) -> int:
    """Forwards that were computed again."""
    return sum(d.event.recomputed for d in run.decisions() if isinstance(d.event, CaughtUp))


def stage_bytes(run: Cluster, stage: int) -> int:
    """Parameters and moments of a stage: 12 bytes a parameter."""
    cut = (*run.job.cluster.cut, 0) if run.job.cluster.cut else run._strategy().placement.cut
    workload = build_model(run.job)
    layers = (build_layer(workload, i, 0) for i in range(cut[stage], cut[stage + 1]))
    return 12 * sum(p.numel() for layer in layers for p in layer.parameters())


def assert_calm_after_kill(run: Cluster, leaver: str) -> None:
    """Kill it now, if its process has not ended in order in the meantime."""
    run.kill(leaver)
    if run.processes[leaver].status(10) == 0:
        run.killed.discard(leaver)
    assert_calm(run)


# ---------------------------------------------------------------- one notice


def test_only_what_the_successor_lacks_is_sent() -> None:
    """The shadow goes on with what it has; the standby gets what the leaver owned and what it
    shadowed, each once, and nobody gets anything else."""
    with cluster(job(steps=ENDLESS, redundancy="stash")) as run:
        run.start(5)
        run.wait_step(3)
        (leaver,) = owners(run, [2])
        standby = next(n.id for n in run.state().nodes if n.status is NodeStatus.READY)
        notice(run, leaver)
        wait_left(run, leaver)
        at_full_strength(run, 4)
        assert run.processes[leaver].status(10) == 0
        assert_calm_so_far(run)
        assert again(run) == 0
        joined = [d.event for d in run.decisions() if isinstance(d.event, ReplicaJoined)]
        assert sorted((str(e.slot), e.receiver) for e in joined) == [
            ("0.2", standby), ("0.3", standby),
        ]  # fmt: skip
        for event in joined:
            least = stage_bytes(run, event.slot.stage)
            gradients, rest = divmod(event.bytes - least, least // 3)
            assert rest == 0, f"{event.bytes} bytes are not {least} and whole gradients"
            assert 0 <= gradients <= event.step


def test_without_replicas_only_the_stage_itself_is_sent() -> None:
    """The only copy goes from the leaver to the standby, at a step boundary."""
    with cluster(job(steps=ENDLESS, redundancy="off")) as run:
        run.start(5)
        run.wait_step(3)
        (leaver,) = owners(run, [1])
        notice(run, leaver)
        wait_left(run, leaver)
        assert_calm_so_far(run)
        built = [d.event.bytes for d in run.decisions() if isinstance(d.event, LayoutBuilt)]
        assert sorted(built) == [0, 0, 0, stage_bytes(run, 1)]
        assert again(run) == 0


# ---------------------------------------------------------------- the cloud does not keep to it


@pytest.mark.parametrize("mode", [pytest.param("stash", marks=pytest.mark.full), "off"])
def test_a_notice_for_all_that_nobody_keeps(mode: str) -> None:
    """Nobody is there to hand over to: they store all and stand, also past the deadline, until
    others come."""
    with cluster(job(steps=20, redundancy=mode, **SLOW)) as run:
        run.start()
        run.wait_step(2)
        deadline_s = time.time() + 0.2
        notice(run, *owners(run, range(4)), in_s=0.2)
        run.wait(lambda s: bool(s.checkpoints), 20, "all is stored")
        wait_until(lambda: time.time() > deadline_s, what="the deadline")
        assert run.state().phase is not Phase.FINISHED
        run.start(4)
        assert_calm(run)
        assert again(run) == 0


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        ("stash", 0),
        *(pytest.param("stash", seed, marks=pytest.mark.full) for seed in (1, 2, 3)),
        *(pytest.param("eager", seed, marks=pytest.mark.full) for seed in range(4)),
    ],
)
def test_the_instance_goes_in_the_middle_of_the_drain(mode: str, seed: int) -> None:
    """Killed at a random moment from the notice until after the hand-over, so within it or just
    behind it."""
    draw = random.Random(seed)
    with cluster(job(steps=14, redundancy=mode, **SLOW)) as run:
        run.start(5)
        run.wait_step(2)
        (leaver,) = owners(run, [draw.randrange(4)])
        kill_s = time.monotonic() + draw.uniform(0.0, 0.25)
        notice(run, leaver)
        wait_until(lambda: time.monotonic() >= kill_s, what="the moment", poll_s=0.001)
        assert_calm_after_kill(run, leaver)


@pytest.mark.parametrize("mode", ["peer", pytest.param("off", marks=pytest.mark.full)])
def test_the_instance_goes_in_the_middle_of_the_new_layout(mode: str) -> None:
    """Without replicas a notice asks for a new layout; the leaver dies while that is agreed."""
    settings = job(
        steps=24, redundancy=mode, pipelines=2 if mode == "peer" else 1, stages=2, **SLOW
    )
    settings = replace(settings, checkpoint=CheckpointConfig(every_steps=5))
    with cluster(settings) as run:
        run.start(5 if mode == "peer" else 3)
        run.wait(lambda s: len(s.checkpoints) >= 1, 60, "a checkpoint")
        (leaver,) = owners(run, [1])
        notice(run, leaver)
        run.wait(lambda s: s.reconfiguration is not None, 10, "the new layout")
        assert_calm_after_kill(run, leaver)
        assert bool(restores(run)) == (mode == "off" and leaver in run.killed)


# ---------------------------------------------------------------- many at once


def test_three_of_four_at_once() -> None:
    """The one that stays takes everything, one hand-over after the other."""
    with cluster(job(steps=ENDLESS, redundancy="stash")) as run:
        run.start()
        run.wait_step(3)
        leavers = owners(run, [0, 2, 3])
        notice(run, *leavers)
        wait_left(run, *leavers)
        assert_calm_so_far(run)
        assert again(run) == 0
        assert not restores(run)


@pytest.mark.parametrize(
    ("mode", "pipelines", "stages"),
    [
        ("stash", 1, 4),
        pytest.param("eager", 2, 2, marks=pytest.mark.full),
        pytest.param("off", 1, 4, marks=pytest.mark.full),
        pytest.param("peer", 2, 2, marks=pytest.mark.full),
    ],
)
def test_all_at_once_and_others_come(mode: str, pipelines: int, stages: int) -> None:
    """Every node has its notice, and as many others come: all of them leave in order, and then
    the cloud takes them. Nothing is computed again, nothing restored."""
    settings = job(steps=ENDLESS, redundancy=mode, pipelines=pipelines, stages=stages)
    with cluster(settings) as run:
        run.start()
        run.wait_step(3)
        leavers = list(run.processes)
        notice(run, *leavers)
        run.start(4)
        wait_left(run, *leavers)
        assert_calm_so_far(run)
        assert again(run) == 0
        assert not restores(run)
        assert set(run.state().assignment.owners).isdisjoint(leavers)
