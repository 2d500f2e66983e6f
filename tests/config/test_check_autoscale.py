"""Which [autoscale] sections leave something to choose, and something to choose by."""

from pathlib import Path

import pytest

from bamboo.config.tree import AutoscaleConfig
from bamboo.errors import InputError
from tests.jobs import tiny_job

ON = ("autoscale.enabled=true", "cluster.pipelines=1", "cluster.max_pipelines=2")


def test_off_by_default_and_unlimited(tmp_path: Path) -> None:
    assert tiny_job(tmp_path).autoscale == AutoscaleConfig()
    assert tiny_job(tmp_path, ON).autoscale == AutoscaleConfig(enabled=True)
    assert AutoscaleConfig().marginal == 0.1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["cluster.max_pipelines=1"],
            "cluster.max_pipelines = 1: leaves autoscale.enabled",
        ),
        (
            ["cluster.standbys=2"],
            "cluster.standbys = 2: is enough for a pipeline of cluster.stages = 2",
        ),
        (["autoscale.max_nodes=1"], "autoscale.max_nodes = 1: is fewer than the run begins with"),
        (["autoscale.min_nodes=3"], "autoscale.min_nodes = 3: is more than the run begins with"),
        (["autoscale.marginal=1"], "autoscale.marginal = 1.0: is out of range"),
        (["autoscale.utility=often"], "take one of none, linear, step"),
        (["autoscale.utility=step"], "autoscale.utility_usd = 0.0: is what autoscale.utility"),
        (
            ["autoscale.utility=linear", "autoscale.utility_usd=5"],
            'autoscale.deadline_hours = 0.0: is what autoscale.utility = "linear" goes by',
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        tiny_job(tmp_path, [*ON, *overrides])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_off_is_not_looked_at(tmp_path: Path) -> None:
    assert tiny_job(tmp_path, ["autoscale.max_nodes=1"]).autoscale.max_nodes == 1
