"""What the default job promises: its size, its length, and preemptions that can be survived."""

from pathlib import Path

import torch

from bamboo.config.load import load_job
from bamboo.models import build_layer, build_model
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot

JOB = load_job(Path(__file__).parents[2] / "examples" / "gpt-local.toml")


def test_size_and_length() -> None:
    spec = build_model(JOB)
    layers = [build_layer(spec, i, 1) for i in range(len(spec.factories))]
    assert sum(p.numel() for layer in layers for p in layer.parameters()) >= 3_000_000
    assert all(p.dtype == torch.float32 for layer in layers for p in layer.parameters())
    assert JOB.train.steps >= 100
    assert JOB.cluster.stages == 4
    assert JOB.cluster.redundancy == "eager"


def test_each_kill_has_a_live_copy() -> None:
    grid = Grid(pipelines=1, stages=JOB.cluster.stages)
    owner = {slot: slot for slot in grid.slots()}
    shadow: dict[Slot, Slot | None] = {slot: grid.protector(slot) for slot in grid.slots()}
    kills = sorted(JOB.chaos.kill, key=lambda kill: kill.step)
    assert len(kills) >= 2
    assert kills[0].notice_s == 0
    assert kills[0].phase in ("forward", "backward")
    assert any(kill.notice_s > 0 for kill in kills[1:])
    for kill in kills:
        victim = owner[Slot(pipeline=0, stage=kill.stage)]
        for slot in grid.slots():
            if shadow[slot] == victim:
                shadow[slot] = None
        for slot in grid.slots():
            if owner[slot] == victim:
                successor = shadow[slot]
                assert successor is not None, f"{kill} leaves {slot} without a copy"
                owner[slot], shadow[slot] = successor, None
