"""A weight that goes by factors, and that some microbatches use twice: no look at the model has
seen it, because what is computed hangs on the data. Those steps have the bits of the calm run."""

import random
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.config.tree import ClusterConfig, JobConfig, ModelConfig, TrainConfig
from bamboo.core.state import Outcome
from bamboo.models import Workload
from bamboo.topology.sync import Sync, SyncRule
from testbed.simulated import World
from testbed.wide_cnn import CLASSES, SIDE, Images
from tests.runtime.test_interleavings import calmly, killable

pytestmark = pytest.mark.timeout(120)

WIDTH = 24
STEPS = 6
MICROBATCHES = 8
LAYERS = range(1, 6)
BY_FACTORS = Sync(
    rules=tuple(
        SyncRule(match=name, exchange="factors", ship="factors")
        for name in (f"{layer}.linear.weight" for layer in LAYERS)
    )
)


class SometimesTwice(nn.Module):
    """A linear layer, which values of a large sum pass twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BW: Tensor) -> Tensor:
        y_BW: Tensor = self.linear(x_BW).tanh()
        return self.again(y_BW) if x_BW.sum() > 0 else y_BW

    def again(self, y_BW: Tensor) -> Tensor:
        out_BW: Tensor = self.linear(y_BW)
        return out_BW


class WithoutTheLayer(SometimesTwice):
    """The second time another function uses the weight, and its layer is told nothing."""

    def again(self, y_BW: Tensor) -> Tensor:
        return F.linear(y_BW, self.linear.weight)


class InPlaceOfTheLayer(SometimesTwice):
    """The second time what the layer has given is dropped."""

    def forward(self, x_BW: Tensor) -> Tensor:
        y_BW: Tensor = self.linear(x_BW)
        return F.linear(x_BW.cos(), self.linear.weight) if x_BW.sum() > 0 else y_BW


class OfOneCast(SometimesTwice):
    """Both uses share what autocast has cast the weight to."""

    def forward(self, x_BW: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y_BW: Tensor = self.linear(x_BW)
            if x_BW.sum() > 0:
                y_BW = y_BW + F.linear(x_BW.cos(), self.linear.weight)
        return y_BW.float().tanh()


class WithItsSlope(SometimesTwice):
    """The second use is the slope of the first."""

    def forward(self, x_BW: Tensor) -> Tensor:
        x_BW = x_BW * 1.0
        y_BW: Tensor = self.linear(x_BW)
        if x_BW.sum() > 0:
            (slope_BW,) = torch.autograd.grad(y_BW.square().sum(), x_BW, create_graph=True)
            y_BW = y_BW + slope_BW
        return y_BW.tanh()


def loss(scores_BC: Tensor, classes_B: Tensor) -> Tensor:
    return F.cross_entropy(scores_BC.float(), classes_B, reduction="sum")


def build(job: JobConfig) -> Workload:
    del job
    seen = SIDE * SIDE
    layers = (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(seen, WIDTH)),
        SometimesTwice,
        WithoutTheLayer,
        InPlaceOfTheLayer,
        OfOneCast,
        WithItsSlope,
        partial(nn.Linear, WIDTH, CLASSES),
    )
    return Workload(layers=layers, loss=loss, data=Images())


@pytest.mark.parametrize("pipelines", [1, 2])
def test_its_whole_sums_go_in_place_of_factors(pipelines: int) -> None:
    job = JobConfig(
        model=ModelConfig(model=f"{Path(__file__)}:build"),
        train=TrainConfig(steps=STEPS, batch=MICROBATCHES, microbatch=1, virtual_nodes=4),
        cluster=ClusterConfig(
            pipelines=pipelines, stages=2, redundancy="eager", check_replicas=True
        ),
    )
    draw = random.Random(3)
    world = World(job, draw, standbys=1, sync=BY_FACTORS)
    world.run(until=lambda: len(world.losses()) > 1)
    world.kill(draw.choice(killable(world)))
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    calmly(world, job, STEPS)
    # Each weight has two factors of one row for each microbatch: all in this way are so many bytes.
    by_factors = STEPS * MICROBATCHES * len(LAYERS) * 2 * 4 * WIDTH
    if pipelines == 2:
        assert world.sent_bytes()["factors"] > 1.5 * by_factors
