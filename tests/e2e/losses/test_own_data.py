"""Real runs on data of their own, whose samples weigh differently: losses, metrics and tensors are
those of a calm run, whoever reports them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo.config.tree import DataConfig, JobConfig, ModelConfig
from testbed.calm import assert_calm
from testbed.cluster import Cluster, cluster
from tests.data.own_data import SOURCE
from tests.e2e.jobs import job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def own_job(folder: Path, **cluster_keys: Any) -> JobConfig:
    file = folder / "mine.py"
    file.write_text(SOURCE, encoding="utf-8")
    model = ModelConfig(model=f"{file}:build")
    return replace(job(steps=30, stages=3, **cluster_keys), model=model, data=DataConfig())


def measured(run: Cluster) -> dict[int, dict[str, float]]:
    """The metrics by step; all records of a step agree."""
    out: dict[int, dict[str, float]] = {}
    for record in run.metrics("step"):
        assert out.setdefault(record["step"], record["metrics"]) == record["metrics"]
    return out


@pytest.mark.parametrize(
    ("pipelines", "mode"), [(1, "stash"), pytest.param(2, "full", marks=pytest.mark.full)]
)
def test_losses_and_metrics_are_those_of_a_calm_run_though_the_last_stage_is_killed(
    tmp_path: Path, pipelines: int, mode: str
) -> None:
    settings = own_job(tmp_path, pipelines=pipelines, redundancy=mode)
    with cluster(settings) as run:
        run.start()
        for step in (5, 18):
            run.wait_step(step)
            run.kill(run.owner(run.grid.pipeline(0)[-1]))
        assert_calm(run)
        records, found = run.metrics("step"), measured(run)
    assert {record["unit"] for record in records} == {"word"}
    assert len({record["count"] for record in records}) > 3
    assert [found[step]["rows"] for step in range(30)] == [2.0] * 30
    assert found[0]["accuracy"] < found[29]["accuracy"]
    with cluster(replace(settings, cluster=replace(settings.cluster, pipelines=1))) as calm:
        calm.start()
        assert_calm(calm)
        assert measured(calm) == found
