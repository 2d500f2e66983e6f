"""A replica is whole in the very decision that prepares a new layout, for which all stop soon:
it counts, and is sent what comes until all stand at the boundary."""

import random
from typing import Any

import pytest

from bamboo.ids import NodeId
from bamboo.topology.slots import Slot
from testbed.simulated import World
from tests.runtime.test_interleavings import calmly, job
from tests.runtime.test_layouts import policy_of

STEPS = 12
FIRST = Slot(pipeline=0, stage=0)


class Held:
    """Keeps a node's questions for the copy of the first stage, until it is let go."""

    def __init__(self, world: World, node: NodeId) -> None:
        self._send = world.nodes[node].transport.send
        self._kept: list[tuple[Any, ...]] = []
        self.holds = True
        world.nodes[node].transport.send = self.send  # type: ignore[method-assign]

    def send(self, node: NodeId, key: Any, *rest: Any) -> bool:
        if self.holds and key.kind == "pull" and key.to == FIRST:
            self._kept.append((node, key, *rest))
            return True
        return self._send(node, key, *rest)

    def let_go(self) -> None:
        self.holds = False
        for kept in self._kept:
            self._send(*kept)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 8))]
)
def test_a_new_layout_as_soon_as_the_last_replica_is_there(seed: int) -> None:
    draw = random.Random(seed)
    settings = job(stages=2, pipelines=1, virtual_nodes=4, steps=STEPS)
    world = World(settings, draw, standbys=3, policy=policy_of(settings, 2))
    world.run(until=lambda: world.operations >= 5)
    world.kill(NodeId("n01"))
    world.run(until=lambda: not world.unreported)
    held = Held(world, world.standbys[0])
    world.join(world.standbys[0])
    world.run(until=lambda: bool(world.state.moves))
    world.run(until=lambda: not (world.state.moves or world.state.failovers))
    assert [t.slot for t in world.state.transfers] == [FIRST]
    for node in world.standbys[1:]:
        world.join(node)
    held.let_go()
    world.run(until=lambda: world.state.preparing is not None)
    assert "shadows stage 0" in world.reasons[-1], world.report()
    world.run(until=lambda: world.state.reconfiguration is not None)
    world.run(until=lambda: False)
    calmly(world, settings, STEPS)
