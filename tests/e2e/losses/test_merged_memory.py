"""What a node holds once it computes its lost neighbour's stage too: the plan's bytes, and a real
run's. Both count tensors; neither counts what an allocator or a kernel adds."""

import pytest

from bamboo.config.tree import Kill
from bamboo.planner.layers.memory import memory_report
from bamboo.planner.profiles.workload import Saving, WorkloadFigures, saved
from bamboo.study.workload import layer_facts
from bamboo.topology.virtual_nodes import BatchShape
from bamboo.wiring import run_preflight
from testbed.calm import assert_calm
from testbed.cluster import cluster
from tests.e2e.jobs import STEPS, job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180), pytest.mark.usefixtures("warm_torch")]

CUT = (0, 2, 3, 4, 6)
LOST, NEIGHBOUR = 1, 0
SHAPE = BatchShape(virtual_nodes=1, microbatches=8)


@pytest.mark.parametrize(
    ("mode", "recompute"),
    [
        *(("stash", "layer"), ("eager", "off")),
        *(
            pytest.param(*of, marks=pytest.mark.full)
            for of in (("stash", "off"), ("eager", "layer"))
        ),
    ],
)
def test_a_merged_node_holds_what_the_plan_says(mode: str, recompute: str) -> None:
    """Stages 1 and 2 are a block each, so the replica that comes is as large as the plan has it."""
    kill = Kill(step=STEPS - 4, stage=LOST, pipeline=0, phase="backward", microbatch=5)
    keys = {"redundancy": mode, "recompute": recompute, "cut": CUT[:-1], "patience_s": 60.0}
    with cluster(job(kill, **keys)) as run:
        run.start()
        assert_calm(run)
        (record,) = (x for x in run.metrics("memory") if x["node"] == f"i-{NEIGHBOUR:02d}.1")
        grid, settings = run.grid, run.job
    layers = layer_facts(settings, run_preflight(settings))
    none = (0.0,) * len(layers)
    work = WorkloadFigures(
        name="", source="", layers=layers, forward_s=none, backward_s=none, shape=SHAPE, batch=16
    )
    facts = saved(work, Saving(recompute=recompute == "layer")).layers
    plan = memory_report(facts, cut=CUT, grid=grid, shape=SHAPE, mode=mode)[NEIGHBOUR]
    # A run does not record gradients on their way to a shadow, of its own stage and of the other,
    # nor, in most runs, the rest of a layer that is computed again. One run in a dozen has as much
    # more, and the cause is open.
    again = max(x.again_bytes for x in facts)
    unseen = plan.shipping + 4 * facts[2].parameters + again
    expected = plan.total - unseen
    ratio = record["peak_tensor_bytes"] / expected
    # How much is computed ahead depends on when a node waits; the plan counts a whole step of it.
    assert (0.97 if mode == "stash" else 0.75) <= ratio, (plan, record)
    assert record["peak_tensor_bytes"] <= 1.03 * expected + again, (plan, record)
    assert plan.takeover > plan.calm / 5, "without it the plan would be far off"
