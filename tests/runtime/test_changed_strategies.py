"""A run that changes how its steps are synchronised, again and again, under deaths: it has the bits
of the calm run, and no node begins a step before it knows how the step is synchronised."""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from bamboo.coord.strategies import Strategies
from bamboo.core.events import Event, StrategyProposed
from bamboo.core.proposals import MARGIN
from bamboo.core.state import Outcome
from bamboo.ids import NodeId
from bamboo.runtime.wire.outbox import Outbox
from bamboo.topology.strategy import canonical_json
from bamboo.topology.sync import Sync, SyncRule
from testbed.simulated import Node, World
from tests.runtime.test_interleavings import SEED, calmly, job, killable

pytestmark = pytest.mark.timeout(120)

STEPS = 18
KINDS = (
    Sync(),
    Sync(bucket=0),
    Sync(rules=(SyncRule(match="*.weight", exchange="rows", ship="rows"),), bucket=300),
    Sync(rules=(SyncRule(match="*.bias", exchange="owner", owners=(1, 0)),)),
    Sync(
        rules=(
            SyncRule(match="*.expand.weight", exchange="factors", ship="factors"),
            SyncRule(match="0.*", exchange="owner", owners=(1,), ship="rows"),
        )
    ),
    Sync(rules=(SyncRule(match="*", exchange="zoned"),), zones=(0, 1)),
)


def knowing(_: NodeId, outbox: Outbox) -> Mapping[str, Any]:
    """A node that finds every strategy in the store."""
    del outbox
    strategies = Strategies()
    for sync in KINDS:
        strategies.add(canonical_json(sync.body()))
    return {"strategies": strategies}


class Changing(World):
    """A world in which strategies are proposed, whose decisions are held to what was promised."""

    unheard: Sequence[Node] = ()
    """Nodes whose words do not come to the log."""

    def commit(self, event: Event) -> None:
        before = self.state.syncs[-1:]
        super().commit(event)
        if self.state.syncs[-1:] != before:
            begun = [n.trainer.executor.begun_step for n in self.nodes.values() if n.running]
            assert max(begun) < self.state.syncs[-1].from_step, self.report()

    def propose(self) -> None:
        """Sometimes the word of a node is late, so that all come to what they promised."""
        sync = self.draw.choice(KINDS)
        self.commit(StrategyProposed(reporter="launcher", hash=sync.hash(), why="a trial"))
        if self.draw.random() < 0.4:
            self.go_on_unheard([self.draw.choice(self.running())])

    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.running]

    def go_on_unheard(self, nodes: Sequence[Node]) -> None:
        """Let all go on as far as they can while nobody hears of these."""
        self.unheard = nodes
        for _ in range(80):
            for node in self.running():
                node.turn(50, until_idle=True)
            for action in self.actions():
                action()
        self.unheard = ()

    def actions(self) -> list[Callable[[], None]]:
        said = [node.said for node in self.unheard]
        for node in self.unheard:
            node.said = deque()
        try:
            return super().actions()
        finally:
            for node, words in zip(self.unheard, said, strict=True):
                node.said = words

    def until_step(self, step: int) -> None:
        """Go on until some node has begun this step."""
        self.run(until=lambda: self.begun() >= min(step, STEPS - 1))

    def begun(self) -> int:
        return max(n.trainer.executor.begun_step for n in self.nodes.values())


@pytest.mark.parametrize(
    "seed",
    [SEED + 5, *(pytest.param(SEED + n, marks=pytest.mark.full) for n in range(6, 200))],
)
def test_strategies_change_under_deaths(seed: int) -> None:
    draw = random.Random(seed)
    pipelines, stages = draw.choice(((1, 3), (2, 2), (2, 3)))
    settings = job(
        stages=stages, pipelines=pipelines, steps=STEPS, redundancy=draw.choice(("stash", "eager"))
    )
    world = Changing(settings, draw, standbys=2, storage=knowing)
    killed = 0
    while not world.over and world.begun() < STEPS - 1:
        world.until_step(world.begun() + draw.randint(1, 3))
        world.propose()
        if killed < 3 and draw.random() < 0.4:
            world.run(until=lambda: draw.random() < 0.03)
            if not world.over and (candidates := killable(world)):
                killed += 1
                world.kill(draw.choice(candidates))
                world.run(until=lambda: not world.unreported)
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    assert world.state.syncs, "some were chosen"
    calmly(world, settings, STEPS)


def test_a_store_that_goes_away_meanwhile_has_all_stand_where_they_promised_to() -> None:
    """Nobody can know whether the last answer was written. Once the store is back they go on, by
    the strategy that was proposed."""
    settings = job(stages=2, pipelines=2, steps=STEPS)
    world = Changing(settings, random.Random(SEED), storage=knowing)
    world.until_step(3)
    world.commit(StrategyProposed(reporter="launcher", hash=KINDS[2].hash(), why="a trial"))
    world.go_on_unheard(world.running())
    executors = [node.trainer.executor for node in world.running()]
    promised = [one.promised or 0 for one in executors]
    assert MARGIN < min(promised) < STEPS - 1
    assert min(one.begun_step for one in executors) == min(promised) - 1
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    assert [one.hash for one in world.state.syncs] == [KINDS[2].hash()]
    calmly(world, settings, STEPS)
