"""What a new layout needs is sent and followed in any order of events: nobody fetches anything
while all stand, and whatever is lost meanwhile, the bits are the calm run's."""

import os
import random
from collections.abc import Collection
from typing import Any

import pytest
import torch

from bamboo.config.tree import JobConfig
from bamboo.core.events import Event, LayoutBuilt, Reconsider
from bamboo.core.next_layout import feeds_under_way
from bamboo.core.state import Prefetch
from bamboo.ids import NodeId
from bamboo.ports import Delivered, MessageKind
from bamboo.runtime.optim.state import Layout
from bamboo.runtime.state import prefetch
from bamboo.runtime.state.prefetch import Following
from bamboo.runtime.wire.chunks import Gathering
from bamboo.runtime.wire.messages import Message
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from testbed.simulated import World
from tests.runtime.test_interleavings import job
from tests.runtime.test_layouts import policy_of, to_the_end

pytestmark = pytest.mark.timeout(120)

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1")) * 1_000_000
STEPS = 14
QUICK = 1
SEEDS = [pytest.param(seed, marks=() if seed < QUICK else pytest.mark.full) for seed in range(100)]


class Watched(World):
    """A world that remembers what was sent while all stood."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.fetched_bytes: list[int] = []
        super().__init__(*args, **kwargs)

    def commit(self, event: Event) -> None:
        if isinstance(event, LayoutBuilt):
            self.fetched_bytes.append(event.bytes)
        super().commit(event)


def settings_of(draw: random.Random, **fixed: Any) -> JobConfig:
    drawn = {
        "stages": draw.choice((2, 3)),
        "pipelines": 1,
        "virtual_nodes": 4,
        "tied": draw.random() < 0.3,
        "redundancy": draw.choice(("stash", "eager", "peer")),
        "steps": STEPS,
    }
    return job(**(drawn | fixed))


def growing(draw: random.Random, settings: JobConfig) -> Watched:
    """As many nodes more as a second pipeline takes, which are being sent their parts."""
    stages = settings.cluster.stages
    world = Watched(settings, draw, standbys=stages, policy=policy_of(settings, 2))
    for node in world.standbys:
        world.join(node)
    assert world.state.preparing is not None
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_fetched_while_all_stand(seed: int) -> None:
    draw = random.Random(SEED + seed)
    settings = settings_of(draw)
    world = growing(draw, settings)
    world.run(until=lambda: world.state.grid.pipelines == 2 and world.state.reconfiguration is None)
    assert world.state.grid == Grid(pipelines=2, stages=settings.cluster.stages), world.report()
    assert len(world.fetched_bytes) == world.state.grid.size
    assert sum(world.fetched_bytes) == 0
    to_the_end(world, settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_stages_are_cut_anew_from_what_was_followed(seed: int) -> None:
    draw = random.Random(SEED + seed)
    settings = settings_of(draw, stages=4, redundancy=draw.choice(("stash", "gap", "full")))
    world = Watched(settings, draw, standbys=1, policy=policy_of(settings, 1))
    world.kill(NodeId("n01"))
    world.run(until=lambda: not world.unreported)
    world.run(until=lambda: not (world.state.failovers or world.state.transfers))
    world.commit(Reconsider(reporter="fleet", reason="no replacement came"))
    if world.state.preparing is not None:
        world.run(until=lambda: world.state.preparing is None)
    world.run(until=lambda: world.state.reconfiguration is None)
    assert world.over or world.state.grid.stages == 3
    assert sum(world.fetched_bytes) == 0
    to_the_end(world, settings)


@pytest.mark.parametrize("of", ["source", "receiver"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_while_it_is_sent(seed: int, of: str) -> None:
    """And also while all stop for the new layout."""
    draw = random.Random(SEED + seed)
    settings = settings_of(draw, redundancy=draw.choice(("stash", "eager")))
    world = growing(draw, settings)
    assert world.state.preparing is not None
    feed = draw.choice(world.state.preparing.feeds)
    for _ in range(draw.randint(0, 900)):
        if feed in feeds_under_way(world.state):
            world.step()
    if not world.over:
        world.kill(feed.source if of == "source" else feed.receiver)
    to_the_end(world, settings)


def messages(world: World, kind: MessageKind, senders: Collection[NodeId]) -> list[Delivered]:
    """Those of a kind that are on their way, or here and not heard yet."""
    queues = [queue for (sender, _, _), queue in world.wires.queues.items() if sender in senders]
    queues += [node.transport.arrived for node in world.nodes.values()]
    found = (one for queue in queues for one in queue)
    return [one for one in found if one.key.kind == kind and one.sender in senders]


def test_a_step_is_followed_with_its_gradient_and_its_norm() -> None:
    feed = Prefetch(
        slot=Slot(pipeline=0, stage=0),
        source=NodeId("a.1"),
        receiver=NodeId("b.1"),
        first=0,
        stop=1,
        since=1,
    )
    room = torch.zeros(2)
    layout = Layout(params={}, kept={})
    gathering = Gathering(1, (room,), 8)
    found = Following(feed=feed, layout=layout, room={"0": room}, gathering=gathering)
    assert found.gathering.take(0, torch.ones(2), whole=8)
    found.step = 3
    assert found.stands
    assert not found.can_follow
    found.total_squares[3] = 1.0
    assert not found.stands
    assert not found.can_follow, "its gradient is not here"
    found.gradients[3] = Message(tensors=(torch.ones(2),))
    assert found.can_follow


def followed_before_the_norm(world: World) -> list[tuple[NodeId, int]]:
    """The owner and the step of each gradient that was sent to who follows before its norm."""
    found = []
    for message in messages(world, "follow", list(world.nodes)):
        trainer = world.nodes[message.sender].trainer
        run = trainer.executor.owned.get(message.key.to)
        waits = run is not None and not run.exchange.total_square_known(trainer.mailbox)
        if waits and run is not None and run.step == message.key.index:
            found.append((message.sender, run.step))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gradient_goes_to_who_follows_before_its_owner_may_take_the_step(seed: int) -> None:
    draw = random.Random(SEED + seed)
    settings = settings_of(draw)
    world = growing(draw, settings)
    early: set[tuple[NodeId, int]] = set()

    def is_laid_out() -> bool:
        early.update(followed_before_the_norm(world))
        return world.state.grid.pipelines == 2 and world.state.reconfiguration is None

    world.run(until=is_laid_out)
    assert early, "each time it had waited for the squares of all"
    to_the_end(world, settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_owner_is_lost_between_its_gradient_and_the_norm(seed: int) -> None:
    """Who follows has a gradient then whose step its source never took."""
    draw = random.Random(SEED + seed)
    settings = settings_of(draw, redundancy=draw.choice(("stash", "eager")))
    world = growing(draw, settings)
    world.run(until=lambda: bool(followed_before_the_norm(world)))
    owner, _ = draw.choice(followed_before_the_norm(world))
    world.kill(owner)
    to_the_end(world, settings)


def stops(world: World) -> bool:
    """Whether all are to stop for a planned layout, and where they go on from is not decided."""
    reconfiguration = world.state.reconfiguration
    return reconfiguration is not None and reconfiguration.planned and reconfiguration.base is None


@pytest.mark.parametrize("seed", SEEDS)
def test_any_owner_is_lost_while_all_stop(seed: int) -> None:
    draw = random.Random(SEED + seed)
    mode = draw.choice(("stash", "eager", "gap", "full"))
    if draw.random() < 0.5:
        settings = settings_of(draw, redundancy=mode)
        world = growing(draw, settings)
    else:
        settings = settings_of(draw, redundancy=mode, stages=4)
        world = Watched(settings, draw, standbys=1, policy=policy_of(settings, 1))
        world.kill(NodeId("n01"))
        world.run(until=lambda: not world.unreported)
        world.run(until=lambda: not (world.state.failovers or world.state.transfers))
        world.commit(Reconsider(reporter="fleet", reason="no replacement came"))
    world.run(until=lambda: stops(world))
    for _ in range(draw.randint(0, 250)):
        if stops(world):
            world.step()
    if stops(world) and world.state.assignment is not None:
        owners = sorted(world.state.assignment.members())
        world.kill(draw.choice([node for node in owners if world.nodes[node].running]))
    to_the_end(world, settings)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_chunks_change_hands_while_a_device_computes(
    monkeypatch: pytest.MonkeyPatch, seed: int, lost: bool
) -> None:
    """Of a node that runs ahead of its device, and any node may be lost meanwhile."""
    monkeypatch.setattr(prefetch, "LARGE_CHUNK", 256)
    draw = random.Random(SEED + seed)
    redundancy = draw.choice(("stash", "eager"))
    settings = settings_of(draw, redundancy=redundancy, device="lagging")
    world = growing(draw, settings)
    for _ in range(draw.randint(0, 900)):
        if lost and not world.over:
            world.step()
    if lost and not world.over:
        world.kill(draw.choice([node for node in world.nodes if world.nodes[node].running]))
    to_the_end(world, settings)
