"""A number that is not finite ends the run with the step and the layer where it begins, wherever
that is, and whoever is lost meanwhile; and no step is taken on it."""

import pytest

from bamboo.config.tree import Kill
from testbed.cluster import Cluster, cluster
from tests.e2e.jobs import job

pytestmark = pytest.mark.e2e
STEP = 3


def ended_at_a_fault(run: Cluster, fault: str, timeout_s: float = 30.0) -> str:
    """Every node has the same fault; the sentence of the end."""
    run.start(faults=dict.fromkeys(range(run.grid.size), fault))
    state = run.finish(timeout_s=timeout_s)
    assert state.outcome == "fault", run.report()
    assert state.sentence.startswith(f"step {STEP}: "), run.report()
    assert max(run.losses()) < STEP, "no step is taken on numbers that are not finite"
    return state.sentence


@pytest.mark.parametrize("layer", [pytest.param(3, marks=pytest.mark.full), 5])
def test_it_is_named_where_it_begins_even_if_the_last_microbatch_has_it(layer: int) -> None:
    """All stages have gradients that are not finite then; one alone has the output."""
    with cluster(job()) as run:
        sentence = ended_at_a_fault(run, f"overflow:output,{STEP},7,{layer}")
        assert f"output of microbatch 7 of layer {layer} " in sentence


def test_a_gradient_is_named_where_it_begins() -> None:
    with cluster(job()) as run:
        sentence = ended_at_a_fault(run, f"overflow:gradient,{STEP},7,4")
        assert "gradient of " in sentence
        assert "of layer 4 " in sentence


def test_the_pipeline_that_has_it_says_so() -> None:
    with cluster(job(stages=3, pipelines=2)) as run:
        sentence = ended_at_a_fault(run, f"overflow:output,{STEP},6,3")
        assert "of layer 3 " in sentence
        assert "of pipeline 1)" in sentence


def test_a_node_that_owns_two_stages_looks_at_both() -> None:
    with cluster(job(Kill(step=1, stage=2))) as run:
        sentence = ended_at_a_fault(run, f"overflow:output,{STEP},7,3")
        assert "output of microbatch 7 of layer 3 " in sentence


def test_a_loss_meanwhile_ends_in_the_same_fault() -> None:
    """Nobody takes up the lost stage any more, so its neighbours wait for what it would send."""
    kill = Kill(step=STEP, stage=2, phase="exchange")
    with cluster(job(kill, step_timeout_s=3.0)) as run:
        sentence = ended_at_a_fault(run, f"overflow:output,{STEP},7,4", timeout_s=60)
        assert "not finite" in sentence
