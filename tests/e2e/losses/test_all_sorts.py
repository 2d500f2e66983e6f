"""The kill matrix for a workload of all sorts: several tensors between stages, of which some are
handed through and one is used by nobody, frozen parameters in bfloat16, a tied weight, batch norms,
masks, sentences of unequal length. The workload is an example (examples/all_sorts.py)."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo.checkpoint.final import describe, stage_file
from bamboo.config.tree import DataConfig, JobConfig, Kill, ModelConfig
from bamboo.core.events import Reconsider
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from testbed.calm import assert_calm_so_far
from testbed.cluster import cluster, protected
from tests.e2e.jobs import ENDLESS, job
from tests.e2e.layouts.test_elastic import trains
from tests.e2e.losses.test_kill_matrix import MATRIX, SEED, TWO, Case, name, sample, survives

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "all_sorts.py"


def of_all_sorts(*kills: Kill, **settings: Any) -> JobConfig:
    """The small job of these tests with that workload."""
    return replace(
        job(*kills, **settings),
        model=ModelConfig(model=f"{EXAMPLE}:build"),
        data=DataConfig(),
    )


def devices(case: Case) -> dict[str, Any]:
    """A device and numbers that the case itself decides."""
    draw = random.Random(f"{SEED} {case}")
    return {
        "device": draw.choice(("cpu", "lagging")),
        "precision": draw.choice(("fp32", "bf16")),
        "recompute": draw.choice(("off", "layer")),
    }


@pytest.mark.parametrize("case", sample(MATRIX, 1), ids=name)
def test_a_sample_of_the_matrix(case: Case) -> None:
    survives(of_all_sorts(case.kill, redundancy=case.mode, **devices(case)), case)


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "lagging"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", MATRIX, ids=name)
def test_the_whole_matrix(case: Case, precision: str, device: str) -> None:
    settings = {"redundancy": case.mode, "precision": precision, "device": device}
    survives(of_all_sorts(case.kill, **settings), case)


def two_pipelines(case: Case) -> JobConfig:
    grid = {"pipelines": 2, "stages": 3, "virtual_nodes": 4}
    return of_all_sorts(case.kill, redundancy=case.mode, **grid, **devices(case))


@pytest.mark.parametrize("case", sample(TWO, 1), ids=name)
def test_one_with_two_pipelines(case: Case) -> None:
    survives(two_pipelines(case), case)


@pytest.mark.full
@pytest.mark.parametrize("case", TWO, ids=name)
def test_all_with_two_pipelines(case: Case) -> None:
    survives(two_pipelines(case), case)


GRIDS = pytest.mark.parametrize(
    ("device", "precision"),
    [
        ("lagging", "bf16"),
        *(
            pytest.param(*of, marks=pytest.mark.full)
            for of in (("cpu", "fp32"), ("cpu", "bf16"), ("lagging", "fp32"))
        ),
    ],
)


@GRIDS
def test_four_stages_and_then_two(device: str, precision: str) -> None:
    """Two stages are lost and nobody comes, so the layers are cut anew."""
    settings = of_all_sorts(steps=ENDLESS, device=device, precision=precision)
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
        # By this a checkpoint of the stop keeps apart what other checkpoints have already.
        final = [describe(run.directory / "final" / stage_file(stage)) for stage in range(2)]
        assert [one["constant"] for one in final] == [["param/0.places.weight"], []]


@GRIDS
def test_one_pipeline_two_and_one(device: str, precision: str) -> None:
    """A pipeline comes, and is lost as a whole."""
    grid = {"stages": 2, "pipelines": 1, "max_pipelines": 2, "virtual_nodes": 2}
    settings = of_all_sorts(steps=ENDLESS, device=device, precision=precision, **grid)
    with cluster(settings) as run:
        run.start(2)
        run.wait_step(3)
        run.start(2)
        trains(run, Grid(pipelines=2, stages=2))
        run.wait_step(max(run.losses()) + 3)
        for stage in (0, 1):
            run.kill(run.owner(Slot(pipeline=1, stage=stage)))
        trains(run, Grid(pipelines=1, stages=2))
        assert_calm_so_far(run)
