"""Pipelines of one stage, each a node with the whole model, in any order of events: the bits are
the calm run's.

The first stage is the last one too: no output and no gradient of one is sent, and a lost node's
state lies with every other pipeline. Each seed is one order; `BAMBOO_TEST_SEED` moves them all.
"""

import os
import random
from typing import Any

import pytest

from bamboo.config.tree import JobConfig
from bamboo.core.events import NoticeReceived, Pace, PaceMeasured
from bamboo.ids import NodeId
from bamboo.ports import MessageKey
from testbed.simulated import NOW_S, SimulatedTransport, World
from tests.runtime.test_interleavings import job, longer
from tests.runtime.test_layouts import go, to_the_end, world_of

pytestmark = pytest.mark.timeout(120)

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1")) * 1_000_000
QUICK = 5
SEEDS = [pytest.param(seed, marks=() if seed < QUICK else pytest.mark.full) for seed in range(300)]


def drawn(draw: random.Random, pipelines: int) -> JobConfig:
    return job(
        stages=1,
        pipelines=pipelines,
        virtual_nodes=4,
        tied=draw.random() < 0.5,
        redundancy="peer",
        steps=4,
    )


@pytest.mark.parametrize("pipelines", [1, 2, 3])
def test_only_the_exchange_is_sent(monkeypatch: pytest.MonkeyPatch, pipelines: int) -> None:
    kinds: set[str] = set()
    send = SimulatedTransport.send

    def noted(self: SimulatedTransport, node: NodeId, key: MessageKey, *rest: Any) -> bool:
        kinds.add(key.kind)
        return send(self, node, key, *rest)

    monkeypatch.setattr(SimulatedTransport, "send", noted)
    settings = drawn(random.Random(SEED), pipelines)
    to_the_end(World(settings, random.Random(SEED)), settings)
    exchange = {"partial", "shard", "squares", "ack"}
    assert kinds == (exchange if pipelines > 1 else set())


@pytest.mark.parametrize("seed", SEEDS)
def test_pipelines_come_while_it_trains(seed: int) -> None:
    draw = random.Random(SEED + seed)
    settings = drawn(draw, 1)
    world = world_of(settings, draw, extra=3, pipelines=3)
    for node in world.standbys:
        if draw.random() < 0.5:
            go(world)
        if not world.over:
            world.join(node)
    to_the_end(world, settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_but_one_are_lost_at_any_moment(seed: int) -> None:
    """Without a word, some after a notice; a standby takes a place where there is one."""
    draw = random.Random(SEED + seed)
    pipelines = draw.choice((2, 2, 3, 4))
    settings = drawn(draw, pipelines)
    world = world_of(settings, draw, extra=draw.choice((0, 1, 2)), pipelines=pipelines)
    for node in world.standbys:
        world.join(node)
    nodes = list(world.nodes.values())
    draw.shuffle(nodes)
    for node in nodes[: draw.randint(1, pipelines - 1)]:
        go(world)
        if world.over:
            break
        if draw.random() < 0.3:
            world.commit(NoticeReceived(node=node.id, deadline_s=NOW_S + 60))
            go(world)
        if node.running and not world.over:
            world.kill(node.id)
    to_the_end(world, settings)


@pytest.mark.parametrize(
    "seed", [2, 9, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(10, 300))]
)
def test_a_node_is_lost_that_told_only_some_of_its_step(seed: int) -> None:
    """The others take the step that they lack only the norm of as what they were in the old layout,
    and what they say of it keeps no slot of the new layout waiting."""
    draw = random.Random(seed)
    pipelines = draw.choice((3, 4))
    settings = longer(drawn(draw, pipelines), 8)
    world = world_of(settings, draw, extra=0, pipelines=pipelines)
    node = world.run_to_a_step()
    assert node is not None
    world.kill(node)
    to_the_end(world, settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_faster_node_gets_more_of_the_batch(seed: int) -> None:
    draw = random.Random(SEED + seed)
    settings = drawn(draw, 2)
    world = world_of(settings, draw, extra=0, pipelines=2)
    go(world)
    state = world.state
    assert state.assignment is not None
    fast = draw.randrange(2)
    paces = tuple(
        Pace(node=node, microbatch_s=0.01 if number == fast else 0.03)
        for number, node in enumerate(state.assignment.owners)
    )
    if not world.over:
        world.commit(PaceMeasured(reporter="test", era=state.era, paces=paces))
    began = world.state.reconfiguration is not None or world.state.preparing is not None
    to_the_end(world, settings)
    if began:
        assert world.state.shares == ((3, 1) if fast == 0 else (1, 3))
