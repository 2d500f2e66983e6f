"""What a plan says of each node: layers and replicas of the assignment, bytes of the memory report,
and times that make up a step."""

import pytest

from bamboo.planner.plans.nodes import node_shares
from bamboo.planner.plans.plan import Plan, make_plan
from bamboo.planner.prices.catalogue import InstanceType
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.topology.grid import Grid
from tests.planner.workloads import B_S, F_S, stakes, workload

KIND = InstanceType(
    name="one",
    gpu="T4",
    gpus=1,
    gpu_memory_gib=16.0,
    network_gbps=5.0,
    on_demand_usd_per_hour=1.0,
    spot_usd_per_hour=(0.4, 0.6),
)


def planned(work: WorkloadFigures, grid: Grid, mode: str) -> Plan:
    return make_plan(
        work.layers,
        grid=grid,
        mode=mode,
        shape=work.shape,
        timed=work,
        instance_type=KIND,
        zone_spot_usd_per_hour={"a": 0.5, "b": 0.6},
        stakes=stakes(),
        spread="one",
    )


@pytest.mark.parametrize("mode", ["off", "stash", "full"])
def test_each_node_of_two_pipelines(mode: str) -> None:
    work = workload(virtual_nodes=3, microbatches=2)
    plan = planned(work, Grid(pipelines=2, stages=4), mode)
    found = node_shares(plan, work)
    assert [node.slot for node in found] == list(plan.grid.slots())
    assert plan.expected is not None
    for node in found:
        assert list(node.layers) == [2 * node.slot.stage, 2 * node.slot.stage + 1]
        assert node.zone == "a"
        assert node.bytes == plan.memory[node.slot.stage]
        kept = [plan.grid.protected(node.slot)] if mode != "off" else []
        assert list(node.replicas) == kept
        # Three virtual nodes on two pipelines: two of them, and one. Time is taken from commit to
        # commit, and in `full` an operation may lie across one.
        own_s = (4 if node.slot.pipeline == 0 else 2) * 2 * (F_S + B_S)
        far = 0.05 if mode == "full" else 1e-6
        assert node.figures.useful_s == pytest.approx(own_s, rel=far)
        assert (node.figures.redundant_s > 0) == (mode == "full")
        spent = node.figures.useful_s + node.figures.redundant_s + node.figures.idle_s
        assert spent == pytest.approx(plan.expected.step_s)
    idle = sum(node.figures.idle_s + node.figures.redundant_s for node in found)
    assert idle / (8 * plan.expected.step_s) == pytest.approx(plan.expected.bubble)
