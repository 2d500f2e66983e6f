"""Random workloads under every cut: the bits are the calm reference's.

`make chaos` plays 2,000 of them; otherwise a few, which `BAMBOO_TEST_SEED` moves.
"""

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bamboo.config.tree import CheckpointConfig, ClusterConfig, JobConfig, ModelConfig, TrainConfig
from bamboo.core.state import Outcome
from testbed import random_workloads
from testbed.calm import calm
from testbed.simulated import World

pytestmark = pytest.mark.timeout(120)

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1")) * 1_000_000
STEPS = 3


def job_of(seed: int) -> JobConfig:
    draw = random.Random(f"job {seed}")
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        model=ModelConfig(model=f"{random_workloads.__file__}:build"),
        train=TrainConfig(
            steps=STEPS,
            batch=8,
            microbatch=draw.choice((1, 2)),
            virtual_nodes=draw.choice((1, 2, 4)),
            seed=seed,
            warmup_steps=1,
            clip_norm=draw.choice((0.0, 0.5)),
            precision=draw.choice(("fp32", "fp32", "bf16")),
        ),
        cluster=ClusterConfig(step_timeout_s=1e9, redundancy="off"),
    )


def cuts(layers: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut so many layers into stages."""
    for count in range(layers):
        for inner in itertools.combinations(range(1, layers), count):
            yield (0, *inner, layers)


def played(job: JobConfig, cut: tuple[int, ...], draw: random.Random, **cluster: object) -> World:
    stages = len(cut) - 1
    mode = "off" if stages == 1 else draw.choice(("off", "stash", "eager", "full"))
    settings = {
        "stages": stages,
        "redundancy": mode,
        "device": draw.choice(("cpu", "lagging")),
        "recompute": draw.choice(("off", "layer")),
    }
    changed = replace(job.cluster, **(settings | cluster))  # type: ignore[arg-type]
    return World(replace(job, cluster=changed), draw, cut=cut)


def calmly(world: World, job: JobConfig) -> None:
    world.settle()
    expected = calm(job, STEPS)
    assert world.state.outcome is Outcome.DONE, world.report()
    assert world.losses() == expected.losses
    for pipeline in range(world.state.grid.pipelines):
        found = world.tensors(pipeline)
        assert found.keys() == expected.tensors.keys()
        for name, tensor in expected.tensors.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(_bits(found[name]), _bits(tensor)), f"{name} of pipeline {pipeline}"


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize(
    "seed",
    [
        *range(SEED, SEED + 6),
        *(pytest.param(seed, marks=pytest.mark.full) for seed in range(SEED + 6, SEED + 2000)),
    ],
)
def test_every_cut_gives_the_calm_bits(seed: int) -> None:
    job, draw = job_of(seed), random.Random(seed)
    layers = len(random_workloads.drawn(seed).steps) + 1
    for cut in cuts(layers):
        world = played(job, cut, draw)
        world.run_in_order()
        calmly(world, job)
