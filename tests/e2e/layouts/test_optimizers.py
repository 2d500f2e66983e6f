"""Optimizers whose state has other shapes, or which have none, over losses and other layouts."""

from dataclasses import replace
from typing import Any

import pytest

from bamboo.config.tree import Group
from bamboo.core.events import Reconsider
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from testbed.calm import assert_calm_so_far
from testbed.cluster import cluster, protected
from tests.e2e.jobs import ENDLESS, job
from tests.e2e.layouts.test_elastic import trains

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

FROZEN = Group(match="1.*", frozen=True)
SLOW = Group(match="*.bias", learning_rate_factor=0.5, weight_decay=0.01)


@pytest.mark.parametrize(
    ("train", "cluster_keys"),
    [
        ({"optimizer": "adafactor", "group": (FROZEN,)}, {"replica_moments": "host"}),
        (
            {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "schedule": "linear"},
            {"device": "lagging"},
        ),
        pytest.param({"optimizer": "sgd", "group": (SLOW,)}, {}, marks=pytest.mark.full),
    ],
    ids=["adafactor", "sgd", "sgd without state"],
)
def test_four_stages_and_then_two(train: dict[str, Any], cluster_keys: dict[str, Any]) -> None:
    settings = job(steps=ENDLESS, **cluster_keys)
    settings = replace(settings, train=replace(settings.train, **train))
    with cluster(settings) as run:
        run.start()
        run.wait_step(3)
        for stage in (1, 3):
            run.kill(run.owner(Slot(pipeline=0, stage=stage)))
            run.wait_step(max(run.losses()) + 3)
        run.wait(protected, 60, "protection")  # a node that still gets replicas does not stop
        run.append(Reconsider(reporter="fleet", reason="no node came"))
        trains(run, Grid(pipelines=1, stages=2))
        assert_calm_so_far(run)
