"""Frozen and tied parameters, constant buffers and batch norms, in any order of events: the bits
are the calm run's.

Each seed is one order; `BAMBOO_TEST_SEED` moves them all.
"""

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.config.resolve import resolve
from bamboo.config.tree import JobConfig
from bamboo.runtime.check.alone import Alone
from bamboo.runtime.check.preflight import preflight
from tests.runtime.test_interleavings import BASE, drawn_job, survives_losses
from tests.runtime.test_layouts import drawn, go, to_the_end, world_of

pytestmark = pytest.mark.timeout(120)

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1")) * 1_000_000
QUICK = 4
SEEDS = [pytest.param(seed, marks=() if seed < QUICK else pytest.mark.full) for seed in range(300)]
MODEL = f"{Path(__file__).with_name('sorts_layers.py')}:build"


def of_all_sorts(settings: JobConfig) -> JobConfig:
    return replace(settings, model=replace(BASE.model, model=MODEL))


def test_it_passes_the_preflight(tmp_path: Path) -> None:
    model = shutil.copy(Path(__file__).with_name("sorts_layers.py"), tmp_path)
    settings = of_all_sorts(resolve(BASE))
    alone = Alone.fork()
    try:
        seen = preflight(
            replace(settings, model=replace(settings.model, model=f"{model}:build")), alone
        )
    finally:
        alone.close()
    still = seen["layers"][2]
    assert (still["parameters"], still["frozen_bytes"]) == (0, 4 * (8 * 8 + 8))


@pytest.mark.parametrize("seed", SEEDS)
def test_losses_at_any_instant(seed: int) -> None:
    draw = random.Random(SEED + seed)
    survives_losses(of_all_sorts(drawn_job(draw)), draw)


@pytest.mark.parametrize("seed", SEEDS)
def test_pipelines_come_while_it_trains(seed: int) -> None:
    """What a new layout needs is sent while all train, and follows each step."""
    draw = random.Random(SEED + seed)
    settings = of_all_sorts(drawn(draw, pipelines=1))
    stages = settings.cluster.stages
    world = world_of(settings, draw, extra=2 * stages, pipelines=3)
    for node in world.standbys:
        if draw.random() < 0.5:
            go(world)
        if not world.over:
            world.join(node)
    to_the_end(world, settings)
