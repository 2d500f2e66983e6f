"""What a swarm sees of how its run stands, and when it calls it healed."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bamboo.chaos.strikes import Swarm, protected, standing
from bamboo.core import events
from tests.controller.world import World, caught_up, job, joined, lost


class Lines:
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def write(self, line: str) -> None:
        self.records.append(json.loads(line))


@pytest.fixture
def world() -> World:
    world = World(job())
    world.do(joined())
    return world


def ship(world: World) -> None:
    """The first of the transfers that are under way comes to its end."""
    transfer = world.driver.state().transfers[0]
    world.do(
        events.ReplicaJoined(
            node=transfer.source,
            slot=transfer.slot,
            receiver=transfer.receiver,
            since=transfer.since,
            step=1,
            bytes=0,
        )
    )


def test_a_run_is_protected_when_every_copy_is_there_again(world: World) -> None:
    assert protected(world.driver.state())
    world.do(lost(2, 1))
    assert standing(world.driver.state()) == {"phase": "failing_over", "under_way": 3}
    world.do(caught_up(1, 2))
    for under_way in (2, 1):
        assert standing(world.driver.state()) == {"phase": "degraded", "under_way": under_way}
        assert not protected(world.driver.state())
        ship(world)
    assert standing(world.driver.state()) == {"phase": "running", "under_way": 0}
    assert protected(world.driver.state())


def test_a_degraded_run_is_not_healed_and_every_change_is_written_down(
    world: World, tmp_path: Path
) -> None:
    led = SimpleNamespace(cloud=None, folder=SimpleNamespace(metrics=tmp_path / "none"))
    swarm = Swarm(cast(Any, led), (), hands=cast(Any, None), tell=lambda text: None)
    lines = Lines()
    swarm._books, swarm._store = cast(Any, lines), world.store
    swarm._steps = 9

    def healed(*, seen_s: float = 0.0) -> bool:
        swarm._follow()
        return swarm._healed(9, seen_s)

    swarm._over_at_s = time.monotonic() - 1.0
    assert healed()
    assert not healed(seen_s=3600.0)  # the last loss may not have been seen
    world.do(lost(2, 1))
    assert not healed()
    world.do(caught_up(1, 2))
    assert not healed()
    ship(world)
    assert not healed()
    ship(world)
    assert healed()
    told = [(one["kind"], one["phase"], one["under_way"]) for one in lines.records]
    assert told == [
        ("stands", "running", 0),
        ("stands", "failing_over", 3),
        ("stands", "degraded", 2),
        ("stands", "degraded", 1),
        ("stands", "running", 0),
    ]
