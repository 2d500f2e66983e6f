"""What the default job promises: its size, its length, and preemptions that can be survived."""

from itertools import pairwise
from pathlib import Path

import torch

from bamboo.config.load import load_job
from bamboo.models import build_layer, build_model
from bamboo.topology.slots import Slot
from tests.core.build import apply, joined, lost, running
from tests.core.test_protect import settle

TIME_TO_PROTECT = 10
"""Steps: several times what a replica takes to join."""
JOB = load_job(Path(__file__).parents[2] / "examples" / "gpt-local.toml")


def test_size_and_length() -> None:
    workload = build_model(JOB)
    layers = [build_layer(workload, i, 1) for i in range(len(workload.layers))]
    assert sum(p.numel() for layer in layers for p in layer.parameters()) >= 3_000_000
    assert all(p.dtype == torch.float32 for layer in layers for p in layer.parameters())
    assert JOB.train.steps >= 100
    assert JOB.cluster.stages == 4
    assert JOB.cluster.redundancy == "eager"


def test_a_loss_then_its_neighbours_then_one_with_a_notice() -> None:
    """By the core itself: each loss is made good before the next, and the standby takes part."""
    assert JOB.cluster.standbys == 1
    kills = JOB.chaos.kill
    assert [kill.notice_s > 0 for kill in kills] == [False, False, True]
    assert kills[1].stage == kills[0].stage + 1
    assert all(later.step - kill.step >= TIME_TO_PROTECT for kill, later in pairwise(kills))
    state = running(stages=JOB.cluster.stages, redundancy=JOB.cluster.redundancy)
    state = apply(state, joined("standby.1")).state
    for kill in kills:
        assert state.assignment is not None
        victim = state.assignment.owner(Slot(pipeline=0, stage=kill.stage))
        state = apply(state, lost(victim)).state
        assert state.outcome is None, f"{kill} leaves a stage without a copy"
        state, _ = settle(state)
        state, _ = settle(apply(state, joined(f"instead-of-{victim}")).state)
    assert state.assignment is not None
    assert len(set(state.assignment.owners)) == JOB.cluster.stages
