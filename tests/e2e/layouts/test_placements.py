"""The numbers never depend on the machines: every placement gives the calm run's bits."""

from typing import Any

import pytest

from bamboo.config.tree import Kill
from testbed.calm import assert_calm
from testbed.cluster import cluster
from tests.e2e.jobs import job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

GRIDS = [(1, 2, "off"), (1, 3, "gap"), (1, 4, "full"), (2, 2, "eager"), (3, 2, "stash")]
MORE_GRIDS = [
    (1, 4, "off"),
    (1, 6, "eager"),
    (2, 3, "full"),
    (2, 4, "gap"),
    (3, 3, "off"),
    (3, 2, "full"),
    (4, 2, "eager"),
]


@pytest.mark.parametrize(
    ("pipelines", "stages", "mode"),
    [*GRIDS, *(pytest.param(*grid, marks=pytest.mark.full) for grid in MORE_GRIDS)],
)
def test_every_grid_and_mode_gives_the_same_bits(pipelines: int, stages: int, mode: str) -> None:
    settings = job(
        pipelines=pipelines, stages=stages, redundancy=mode, virtual_nodes=4, tied=True, steps=5
    )
    with cluster(settings) as run:
        run.start()
        assert_calm(run)


def test_stages_cut_by_hand() -> None:
    with cluster(job(cut=(0, 1, 5), stages=3, steps=5)) as run:
        run.start()
        assert_calm(run)


def test_more_stages_than_microbatches() -> None:
    with cluster(job(pipelines=4, stages=3, redundancy="eager", virtual_nodes=8, steps=4)) as run:
        run.start()
        assert_calm(run)


VIRTUAL: dict[str, Any] = {
    "device": "virtual",
    "virtual_forward_ms": (2.0, 2.0, 3.0, 4.0),
    "virtual_backward_ms": (4.0,),
    "virtual_link_gbps": 0.5,
    "virtual_link_latency_ms": 1.0,
}


def test_the_virtual_device_and_link_change_time_only() -> None:
    lost = Kill(step=3, stage=1, phase="backward", microbatch=2)
    with cluster(job(lost, steps=5, redundancy="gap", **VIRTUAL)) as run:
        run.start()
        assert_calm(run)
        stamps = [record["t_s"] for record in run.metrics("step")]
        # A step of 8 microbatches on the slowest stage takes 8 * (4 + 4) ms.
        assert stamps[-1] - stamps[0] >= 4 * 0.064


@pytest.mark.parametrize("encrypt", [True, False])
def test_between_hosts_with_keys(encrypt: bool) -> None:
    lost = Kill(step=3, stage=2, phase="exchange")
    with cluster(job(lost, redundancy="eager", transport="tcp", encrypt=encrypt)) as run:
        run.start()
        assert_calm(run)
        assert all(n.endpoint.startswith("tcp://") for n in run.state().nodes)
