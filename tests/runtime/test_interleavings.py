"""Any order of operations, messages, decisions and deaths gives the calm run's bits.

Each seed is one order; `BAMBOO_TEST_SEED` moves them all.
"""

import os
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    Group,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.core.events import NoticeReceived, PeerLost, StopRequested
from bamboo.core.state import NodeStatus, Outcome, Phase
from bamboo.ids import NodeId
from bamboo.runtime.check.one_layer import same
from bamboo.runtime.state.decision import Goodbye
from bamboo.topology.strategy import redundancy_of
from testbed.calm import calm, samples_difference
from testbed.random_workloads import drawn_training
from testbed.simulated import NOW_S, World

pytestmark = pytest.mark.timeout(120)

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1")) * 1_000_000
MODES = ("stash", "gap", "eager", "full")
STEPS = 3
BASE = JobConfig(
    checkpoint=CheckpointConfig(every_steps=0),
    model=ModelConfig(layers=2, width=8, heads=2, context=4, dropout=0.1),
    data=DataConfig(source="path", path=str(Path(__file__).parents[2] / "LICENSE"), max_bytes=2000),
    train=TrainConfig(steps=STEPS, batch=8, microbatch=1, seed=3, warmup_steps=1, clip_norm=0.5),
)

BIASES = Group(match="*.bias", learning_rate_factor=0.5, weight_decay=0.01)


def job(
    *,
    virtual_nodes: int = 0,
    tied: bool = False,
    steps: int = STEPS,
    train: Mapping[str, Any] | None = None,
    **cluster: Any,
) -> JobConfig:
    cluster = {"redundancy": "stash"} | cluster
    return replace(
        BASE,
        model=replace(BASE.model, tied=tied),
        train=replace(BASE.train, virtual_nodes=virtual_nodes, steps=steps, **(train or {})),
        cluster=ClusterConfig(step_timeout_s=1e9, **cluster),
    )


def drawn_job(draw: random.Random) -> JobConfig:
    pipelines, virtual_nodes = draw.choice(((1, 1), (1, 4), (2, 2), (2, 4), (3, 4)))
    return job(
        stages=draw.choice((2, 3, 4)),
        pipelines=pipelines,
        virtual_nodes=virtual_nodes,
        tied=draw.random() < 0.3,
        redundancy=draw.choice(MODES),
        check_replicas=draw.random() < 0.3,
        device=draw.choice(("cpu", "lagging")),
        recompute=draw.choice(("off", "layer")),
        replica_moments=draw.choice(("device", "host")),
        train=drawn_training(draw) | {"group": draw.choice(((), (BIASES,)))},
    )


def longer(settings: JobConfig, steps: int) -> JobConfig:
    return replace(settings, train=replace(settings.train, steps=steps))


def calmly(world: World, settings: JobConfig, steps: int = STEPS) -> None:
    """The run's losses, and the tensors of every pipeline, are the calm run's."""
    world.settle()
    expected = calm(settings, steps)
    assert world.losses() == expected.losses, world.report()
    steps_told = [record for record in world.records if record["kind"] == "step"]
    assert not samples_difference(settings, steps_told, steps)
    for pipeline in range(world.state.grid.pipelines):
        found = world.tensors(pipeline)
        assert found.keys() == expected.tensors.keys()
        for name, tensor in expected.tensors.items():
            assert same((found[name],), (tensor,)), f"{name} of pipeline {pipeline}"


def killable(world: World) -> list[NodeId]:
    """Live nodes whose loss leaves a live copy of every slot, whatever else is under way."""
    assignment = world.state.assignment
    assert assignment is not None
    # A node that leaves in order while its heir, or one that it shadows, is dead already and not
    # yet missed takes the last copy with it: no order of decisions helps.
    draining = {n.id for n in world.state.nodes if n.status is NodeStatus.DRAINING}
    leaving = world.unreported | draining
    needed = {assignment.shadow(s) for node in leaving for s in assignment.owned_by(node)}
    # Two neighbours that go within one step may take with them what only the two of them had.
    grid = world.state.grid
    hit = {f.slot for f in world.state.failovers if not f.planned}
    hit |= {s for node in world.unreported for s in assignment.owned_by(node)}
    beside = {near for s in hit for near in (grid.protector(s), grid.protected(s))}
    out = []
    for node in world.nodes.values():
        if beside.intersection(assignment.owned_by(node.id)):
            continue
        shadows = [assignment.shadow(s) for s in assignment.owned_by(node.id)]
        copied = all(
            s is not None and world.nodes[s].running and s not in draining for s in shadows
        )
        if node.running and copied and node.id not in needed:
            out.append(node.id)
    return out


def let_run(world: World) -> None:
    """Go on for a random while, which ends somewhere before the run does."""
    grid, batch = world.state.grid, BASE.train.batch
    left = world.steps * grid.stages * (2 * batch + grid.pipelines) - world.operations
    target = world.operations + world.draw.randint(0, max(left - 1, 0))
    world.run(until=lambda: world.operations >= target)


def victim(world: World) -> NodeId | None:
    """Whom to take after a random while: half of the time a node that has just taken a step, and
    may have told only some of the others."""
    let_run(world)
    chosen = world.run_to_a_step() if world.draw.random() < 0.5 else None
    candidates = killable(world)
    if world.over or not candidates:
        return None
    return chosen if chosen in candidates else world.draw.choice(candidates)


SEEDS = [
    *range(SEED, SEED + 2),
    *(pytest.param(seed, marks=pytest.mark.full) for seed in range(SEED + 2, SEED + 400)),
]


def survives_losses(settings: JobConfig, draw: random.Random) -> None:
    """One to three nodes are lost at any instant, and the bits are the calm run's."""
    world = World(settings, draw)
    for _ in range(draw.choice((1, 1, 2, 3))):
        node = victim(world)
        if node is not None:
            world.kill(node)
            # The next loss may come before this one is decided: then it must not be a neighbour's.
            if draw.random() < 0.7:
                world.run(until=lambda: not world.unreported)
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    calmly(world, settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_losses_at_any_instant(seed: int) -> None:
    draw = random.Random(seed)
    survives_losses(drawn_job(draw), draw)


@pytest.mark.parametrize("seed", SEEDS)
def test_losses_where_each_stage_has_its_own_redundancy(seed: int) -> None:
    draw = random.Random(seed)
    settings = drawn_job(draw)
    modes = redundancy_of([draw.choice(MODES) for _ in range(settings.cluster.stages)])
    survives_losses(replace(settings, cluster=replace(settings.cluster, redundancy=modes)), draw)


@pytest.mark.parametrize("seed", SEEDS)
def test_notices_and_losses_at_any_instant(seed: int) -> None:
    draw = random.Random(seed)
    settings = drawn_job(draw)
    world = World(settings, draw)
    for _ in range(draw.choice((1, 2, 3))):
        node = victim(world)
        if node is None:
            continue
        if draw.random() < 0.7:
            world.commit(NoticeReceived(node=node, deadline_s=NOW_S + 30))
            if draw.random() < 0.3:
                let_run(world)
                if node in killable(world) and not world.over:
                    world.kill(node)
        else:
            world.kill(node)
            world.run(until=lambda: not world.unreported)
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    calmly(world, settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_and_a_loss_at_any_instant(seed: int) -> None:
    draw = random.Random(seed)
    settings = drawn_job(draw)
    world = World(settings, draw)
    acts = ["stop", *draw.choice(((), ("kill",), ("kill", "kill")))]
    draw.shuffle(acts)
    for act in acts:
        node = victim(world)
        if world.over:
            break
        if act == "stop":
            world.commit(StopRequested(reason="the test", outcome=Outcome.STOPPED))
        elif node is not None:
            world.kill(node)
            world.run(until=lambda: not world.unreported)
    world.run(until=lambda: False)
    assert world.state.outcome in (Outcome.STOPPED, Outcome.DONE), world.report()
    last = world.state.stop_at_step
    calmly(world, settings, STEPS if last is None else last + 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_living_are_taken_for_dead(seed: int) -> None:
    """As after a partition, or a stop: the accused works on until it reads that it is gone."""
    draw = random.Random(seed)
    settings = drawn_job(draw)
    world = World(settings, draw)
    for _ in range(draw.choice((1, 2))):
        node = victim(world)
        if node is not None:
            world.commit(PeerLost(node=node, reporter="agent", cause="lease"))
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    calmly(world, settings)
    gone = [n.id for n in world.state.nodes if n.status is NodeStatus.GONE]
    assert all(world.nodes[node].trainer._goodbye is Goodbye.FENCED for node in gone)


@pytest.mark.parametrize("seed", SEEDS)
def test_losses_with_time_to_protect_again(seed: int) -> None:
    """One node after another, down to two: each is survived once the one before is made good."""
    draw = random.Random(seed)
    settings = longer(drawn_job(draw), 12)
    world = World(settings, draw)
    for _ in range(draw.choice((2, 3, 5))):
        world.run(until=lambda: world.state.phase is Phase.RUNNING)
        candidates = killable(world)
        if world.over or len(candidates) < 3:
            break
        world.kill(draw.choice(candidates))
        world.run(until=lambda: not world.unreported)
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    calmly(world, settings, settings.train.steps)


@pytest.mark.parametrize("seed", SEEDS)
def test_standbys_come_while_nodes_go(seed: int) -> None:
    draw = random.Random(seed)
    settings = longer(drawn_job(draw), 8)
    world = World(settings, draw, standbys=3)
    away = list(world.standbys)
    for _ in range(draw.choice((2, 4, 6))):
        let_run(world)
        if world.over:
            break
        if away and draw.random() < 0.5:
            world.join(away.pop())
            continue
        candidates = killable(world)
        node = draw.choice(candidates) if candidates else None
        if node is None:
            continue
        if draw.random() < 0.4:
            world.commit(NoticeReceived(node=node, deadline_s=NOW_S + 30))
        else:
            world.kill(node)
            world.run(until=lambda: not world.unreported)
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    calmly(world, settings, settings.train.steps)


@pytest.mark.parametrize("seed", range(SEED, SEED + 1))
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    def reasons() -> list[str]:
        draw = random.Random(seed)
        world = World(job(stages=3, redundancy="eager"), draw)
        let_run(world)
        world.kill(NodeId("n01"))
        world.run(until=lambda: False)
        return [reason.rsplit(",", 1)[0] for reason in world.reasons]

    assert reasons() == reasons()
