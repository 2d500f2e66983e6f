"""Instances that no node comes from, or whose nodes cannot take part: each is named and ended, and
the next one waits."""

import pytest

from bamboo.core import events
from bamboo.ids import InstanceId, NodeId, ZoneId
from tests.controller.test_outage import Refusing
from tests.controller.world import START_S, World, job, joined, step


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script plays in the loop's own thread, so a wait for a decision would be for nothing."""
    monkeypatch.setattr("bamboo.controller.launcher.TURN_S", 0.0)


def test_an_instance_that_no_node_comes_from_is_ended_once_and_named() -> None:
    """Its agent may have left for good: it would count as there, and never be replaced."""
    config = job(stages=3)
    join_s = int(config.cluster.forming_timeout_s + config.cloud.boot_s)
    world = World(config)

    def train_on() -> None:
        done = int(world.clock_s - START_S)
        world.do(step(done))

    def end() -> None:
        world.interrupts = 2

    world._script = [joined(3), *[train_on for _ in range(join_s + 3)], end]
    world.launcher.run()
    assert world.fleet.terminated == ["i-3"]
    told = [reason for reason in world.screen.reasons if "i-3.0" in reason]
    assert told == [
        f"node i-3.0 cannot take part and leaves: no node came from its instance within {join_s} s"
        "; no other is rented for 5 s (try 1)"
    ]


def ended_at_once(world: World) -> list[str]:
    """What is said of i-3, which is to join three nodes that train, and ends at once."""

    def end() -> None:
        world.fleet.ended_at_s["i-3"] = world.clock_s

    def train_on() -> None:
        world.do(step(int(world.clock_s - START_S)))

    def stop() -> None:
        world.interrupts = 2

    world._script = [joined(3), end, *[train_on for _ in range(4)], stop]
    world.launcher.run()
    return [reason for reason in world.screen.reasons if "i-3.0" in reason]


def test_an_instance_that_ends_before_its_node_came_is_named_and_the_next_one_waits() -> None:
    """Its boot fails, say. The next one would end like it, and each costs money."""
    world = World(job(stages=3))
    assert ended_at_once(world) == [
        "node i-3.0 cannot take part and leaves: its instance ended by itself before the node "
        "joined; see `bamboo logs r`; no other is rented for 5 s (try 1)"
    ]
    assert 0 in world.fleet.may_start


def test_an_instance_that_was_told_to_end_has_not_failed() -> None:
    world = World(job(stages=3))
    world.fleet.terminated.append("i-3")
    assert ended_at_once(world) == []


def test_an_instance_of_an_earlier_part_has_not_failed() -> None:
    world = World(job(stages=3))
    world.fleet.ended_at_s["i-3"] = START_S
    world.launcher = world.new_launcher()
    assert ended_at_once(world) == []


@pytest.mark.parametrize("ours", [True, False])
def test_an_outage_makes_no_instance_late(ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node comes when the store is back, and could not before; one that never does is named
    when its own time is over."""
    config = job(stages=3)
    join_s = int(config.cluster.forming_timeout_s + config.cloud.boot_s)
    world = World(config, store_is_ours=ours)
    refusing = Refusing(world, monkeypatch)

    def train_on() -> None:
        world.do(step(int(world.clock_s - START_S)))

    def end() -> None:
        world.interrupts = 2

    outage = [refusing.go, *[[] for _ in range(2 * join_s)], refusing.come]
    rest = [train_on for _ in range(join_s - 30)]
    world._script = [joined(3), *[train_on for _ in range(20)], *outage, *rest]
    world._script += [lambda: told.append(list(world.fleet.terminated))]
    world._script += [*[train_on for _ in range(30)], end]
    told: list[list[str]] = []
    world.launcher.run()
    assert told == [[]]
    assert world.fleet.terminated == ["i-3"]


def test_after_nodes_that_could_not_take_part_the_next_ones_wait() -> None:
    world = World(job(steps=100))

    def refuse(number: int) -> events.Event:
        return events.NodeFailed(
            node=NodeId(f"i-9{number}.0"),
            instance=InstanceId(f"i-9{number}"),
            zone=ZoneId("a"),
            scope=events.FaultScope.RUN,
            reason="its data differ",
        )

    def end() -> None:
        world.interrupts = 2

    waits = [[] for _ in range(7)]
    world._script = [joined(), step(0), refuse(1), *waits, refuse(2), *waits, *waits, end]
    world.launcher.run()
    told = "".join("-" if new is None else str(new) for new in world.fleet.may_start)
    assert told == "---00000---000000000011111"
    assert world.fleet.terminated == ["i-91", "i-92"]
