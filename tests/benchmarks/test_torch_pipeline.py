"""What our executor is held against does the same training as ours, up to the order of sums."""

import pytest
import torch
from safetensors.torch import load_file

from bamboo.config.resolve import resolve
from bamboo.config.tree import ClusterConfig, DataConfig, JobConfig, ModelConfig, TrainConfig
from bamboo.data.dataset import load_data
from bamboo.models import build_model
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.step.numerics import prepare
from benchmarks.measuring.torch_pipeline import SINGLE, torchs, weights_of
from benchmarks.measuring.turns import read_stamps
from benchmarks.peers.processes import wait_for

CUT = (0, 3, 6)
STEPS = 4


def small_job(pipelines: int) -> JobConfig:
    job = JobConfig(
        model=ModelConfig(layers=4, width=16, heads=2, context=8, dropout=0.0),
        data=DataConfig(max_bytes=20_000),
        train=TrainConfig(
            steps=STEPS,
            batch=8,
            microbatch=2,
            clip_norm=0.05,
            weight_decay=0.1,
            warmup_steps=0,
            learning_rate=1e-3,
            final_learning_rate=1e-3,
        ),
        cluster=ClusterConfig(pipelines=pipelines, stages=2, cut=CUT[:-1], redundancy="off"),
    )
    return resolve(job)


@pytest.mark.parametrize(
    ("name", "pipelines"), [(SINGLE, 1), ("1f1b", 1), ("1f1b", 2), ("gpipe", 1)]
)
def test_the_weights_are_ours_after_some_steps(name: str, pipelines: int) -> None:
    job = small_job(pipelines)
    ranks = 1 if name == SINGLE else 2 * pipelines
    with torchs(name, job, CUT) as contender:
        files = [weights_of(contender.folder, number) for number in range(ranks)]
        wait_for(lambda: all(x.exists() for x in files), lambda: "no weights in a minute", 60.0)
        found = [[tensor for _, tensor in sorted(load_file(file).items())] for file in files]
        stamps = read_stamps(contender.folder)
    assert [len(one) for one in stamps] == [STEPS] * ranks

    prepare(job.cluster)
    calm = CalmRun(job, build_model(job), load_data(job))
    initial = _parameters(calm)
    for _ in range(STEPS):
        calm.step()
    expected = _parameters(calm)
    for first in range(0, ranks, 2):
        theirs = [tensor for one in found[first : first + 2] for tensor in one]
        for mine, other, before in zip(expected, theirs, initial, strict=True):
            # What a step changes is far more than this, so a step left out would be seen.
            torch.testing.assert_close(other, mine, rtol=0, atol=2e-4)
            assert (mine - before).abs().max() > 1e-3


def _parameters(calm: CalmRun) -> list[torch.Tensor]:
    return [x.clone() for name, x in calm.tensors().items() if name.startswith("param/")]
