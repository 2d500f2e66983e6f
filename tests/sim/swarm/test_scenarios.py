"""Scenarios are texts that play the same everywhere; each one that was red once stays green."""

from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.core.state import NodeStatus
from bamboo.errors import InputError
from testbed.swarm.cluster import Cluster
from testbed.swarm.draw import draw
from testbed.swarm.run import play, play_seed, replay
from testbed.swarm.scenario import Fault, Scenario, from_text, to_text
from testbed.swarm.shrink import shrunk
from tests.hash_orders import said_whatever_the_hash
from tests.sim.swarm.planted import BUGS, planted

SCENARIOS = Path(__file__).parent / "scenarios"
FILES = sorted(SCENARIOS.rglob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_was_red_once_is_green(file: Path) -> None:
    verdict = replay(file.read_text(encoding="utf-8"))
    assert verdict.green, f"{verdict.checker}, {verdict.at_s} s: {verdict.sentence}"
    assert verdict.outcome


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_red_in_its_scenario(name: str) -> None:
    """So a checker that has become blind is seen without a search."""
    file = SCENARIOS / "planted" / f"{name}.txt"
    with planted(name):
        assert not replay(file.read_text(encoding="utf-8")).green


def test_a_seed_is_the_same_world_each_time() -> None:
    assert draw(7) == draw(7)
    assert play_seed(7) == play_seed(7)
    assert draw(7) != draw(8)


LOGS = """
from testbed.swarm.cluster import Cluster
from testbed.swarm.draw import draw
for seed in (393, 743):  # nodes that are cut off from several others
    world = Cluster(draw(seed))
    world.agenda.run(until_s=60.0, over=lambda: world.is_over)
    print(*((entry.author, entry.event) for entry in world.log.entries), sep="\\n")
"""


def test_a_seed_is_the_same_world_whatever_the_order_of_sets() -> None:
    assert len(said_whatever_the_hash(LOGS)) > 1000, "whole logs, and each time the same"


def test_what_is_drawn_can_be_written_and_read() -> None:
    for seed in range(60):
        scenario = draw(seed)
        assert from_text(to_text(scenario, ("for people",))) == scenario


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1"),
        ("scenario v2\n", "line 1"),
        ("scenario v1\npipelines many\n", "line 2"),
        ("scenario v1\n\ncolour red\n", "line 3"),
        ("scenario v1\nelastic maybe\n", "line 2"),
        ("scenario v1\nfault 3 lose whom=2\n", "line 2"),
        ("scenario v1\nfault 3 lose who\n", "line 2"),
        ("scenario v1\nfault soon lose\n", "line 2"),
        ("scenario v1\nfault 1 explode\n", "'explode' is none of"),
    ],
)
def test_what_is_not_understood_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        replay(text)


def test_a_red_scenario_is_made_short_and_stays_red() -> None:
    with planted("shadow_not_cleared"):
        seed = next(s for s in range(20) if draw(s).faults and not play_seed(s).green)
        verdict = play_seed(seed)
        short, text = shrunk(draw(seed), verdict)
        assert replay(text).checker == verdict.checker
        assert len(short.faults) <= len(draw(seed).faults)
        assert short.pipelines * short.stages <= draw(seed).pipelines * draw(seed).stages
        assert all(line.startswith("#") for line in text.splitlines()[1:3])
    assert play(short).green


def test_a_calm_world_is_done() -> None:
    verdict = play(replace(Scenario(), stages=3, layers=3, pipelines=2, pipelines_max=2))
    assert (verdict.checker, verdict.outcome) == ("", "done")


def test_a_straggler_without_a_standby_is_replaced_by_a_node_that_is_rented_for_it() -> None:
    fault = Fault(at_s=5.0, kind="slow", other=50)
    scenario = Scenario(stages=4, layers=4, steps=60, heal_s=60.0, faults=(fault,))
    assert play(scenario).green
    world = Cluster(scenario)
    world.agenda.run(until_s=30.0, over=lambda: world.is_over)
    (slow,) = [member for member in world.members if member.speed == 0.5]
    assert len(world.members) == 4 + 1
    node = world.log.state.node(slow.node)
    assert node is not None
    assert node.status is NodeStatus.LEFT
