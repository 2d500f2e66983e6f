"""Stages that share a parameter and are lost together: what one has reduced, the other learns.

A node that is lost right after it has shipped a step leaves a shadow that never computes that step,
so never sends its uses of a tied parameter; another one that is lost before it has shipped needs
them. Each seed is one order of all that happens.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.config.tree import JobConfig
from bamboo.core.state import Outcome
from bamboo.ids import NodeId
from testbed.simulated import World
from tests.runtime.test_interleavings import calmly, job

MODEL = f"{Path(__file__).with_name('tied_layers.py')}:build"


def tied_job(*, pipelines: int) -> JobConfig:
    settings = job(stages=4, pipelines=pipelines, virtual_nodes=4, redundancy="stash")
    return replace(settings, model=replace(settings.model, model=MODEL))


def lose_together(settings: JobConfig, victims: tuple[str, ...], seed: int) -> None:
    """Lose these at one instant, when one of them has just taken a step; then run to the end."""
    draw = random.Random(seed)
    world = World(settings, draw)
    first = NodeId(victims[0])
    counts = world.nodes[first].trainer.executor.operations.counts
    world.run(until=lambda: counts["S"] == 1)
    for victim in victims:
        world.kill(NodeId(victim))
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    calmly(world, settings)


@pytest.mark.parametrize("seed", range(12))
def test_two_stages_of_a_pipeline(seed: int) -> None:
    lose_together(tied_job(pipelines=1), ("n01", "n03"), seed)


@pytest.mark.parametrize("seed", [0, 187, 220])
def test_a_stage_in_two_pipelines(seed: int) -> None:
    lose_together(tied_job(pipelines=2), ("n01", "n05"), seed)
