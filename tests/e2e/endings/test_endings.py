"""How a run ends: unrecoverable, stopped, at fault. Always soon, with a sentence, nothing left."""

from dataclasses import replace

import pytest

from bamboo.config.tree import Kill
from bamboo.core.events import (
    FaultScope,
    NodeFailed,
    NodeJoined,
    PeerLost,
    StopReady,
    StopRequested,
)
from bamboo.core.state import Outcome, Phase
from bamboo.ids import NodeId
from testbed.calm import assert_calm, difference
from testbed.cluster import Cluster, cluster
from tests.e2e.jobs import job
from tests.e2e.losses.test_notice import SLOW

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


# ---------------------------------------------------------------- no live copy


def test_a_stage_and_its_shadow_are_lost() -> None:
    with cluster(job(**SLOW)) as run:
        run.start()
        run.wait_step(1)
        run.kill("i-01.1")
        run.kill("i-02.1")
        state = run.finish(timeout_s=20)
        assert state.outcome == "unrecoverable", run.report()
        assert "no live node holds stage 2" in state.sentence
        assert {run.statuses()[node] for node in ("i-00.1", "i-03.1")} == {0}


def test_the_successor_of_a_failover_is_lost() -> None:
    first = Kill(step=2, stage=2, phase="forward")
    with cluster(job(first, **SLOW)) as run:
        run.start()
        run.wait(lambda s: bool(s.failovers), 20, "the first loss")
        run.kill("i-01.1")
        state = run.finish(timeout_s=20)
        assert state.outcome == "unrecoverable", run.report()
        assert "stage 2" in state.sentence


@pytest.mark.parametrize("pipelines", [1, pytest.param(2, marks=pytest.mark.full)])
def test_one_loss_without_redundancy(pipelines: int) -> None:
    lost = Kill(step=2, stage=1, phase="backward", microbatch=1)
    with cluster(job(lost, redundancy="off", stages=2, pipelines=pipelines)) as run:
        run.start()
        state = run.finish(timeout_s=20)
        assert state.outcome == "unrecoverable", run.report()
        assert "stage 1" in state.sentence
        assert "redundancy is off" in state.sentence


# ---------------------------------------------------------------- a stop


def stop(run: Cluster) -> None:
    run.append(StopRequested(reason="the test says so", outcome=Outcome.STOPPED))


def stopped_calmly(run: Cluster) -> None:
    """All stopped after the same step, with the calm run's bits up to it."""
    state = run.finish()
    assert state.outcome == "stopped", run.report()
    assert state.stop_at_step is not None
    assert not difference(run, state.stop_at_step + 1), run.report()
    assert "the test says so" in state.sentence


@pytest.mark.parametrize("pipelines", [pytest.param(1, marks=pytest.mark.full), 2])
def test_all_stop_after_one_common_step(pipelines: int) -> None:
    with cluster(job(steps=200, stages=3, pipelines=pipelines, redundancy="eager")) as run:
        run.start()
        run.wait_step(3)
        stop(run)
        stopped_calmly(run)
        assert set(run.statuses().values()) == {0}
        assert run.state().stop_at_step < 150


def test_a_stop_before_training_began() -> None:
    with cluster(job()) as run:
        run.start(3)
        run.wait(lambda s: len(s.nodes) == 3, 20, "three nodes")
        stop(run)
        assert run.finish().outcome == "stopped"
        assert set(run.statuses().values()) == {0}


def test_a_member_is_lost_while_a_stop_is_agreed() -> None:
    with cluster(job(steps=200, **SLOW)) as run:
        run.start()
        run.wait_step(1)
        stop(run)
        run.kill("i-02.1")
        stopped_calmly(run)


def test_a_stop_while_a_failover_is_under_way() -> None:
    with cluster(job(Kill(step=3, stage=2, phase="backward", microbatch=6), **SLOW)) as run:
        run.start()
        run.wait(lambda s: s.phase is Phase.FAILING_OVER, 20, "the failover")
        stop(run)
        stopped_calmly(run)
        assert any(isinstance(d.event, StopReady) for d in run.decisions())


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("pipelines", "what", "layer"),
    [
        pytest.param(1, "output", 2, marks=pytest.mark.full),
        (2, "output", 1),
        (1, "gradient", 3),
        pytest.param(1, "output", 5, marks=pytest.mark.full),
        pytest.param(1, "output", 0, marks=pytest.mark.full),
        pytest.param(2, "output", 5, marks=pytest.mark.full),
        pytest.param(2, "gradient", 3, marks=pytest.mark.full),
    ],
)
def test_a_number_that_is_not_finite_names_step_and_layer(
    pipelines: int, what: str, layer: int
) -> None:
    of = {"output": "output of microbatch 7", "gradient": "gradient of contract.bias"}[what]
    with cluster(job(pipelines=pipelines, stages=4 // pipelines)) as run:
        run.start(faults=dict.fromkeys(range(4), f"overflow:{what},3,7,{layer}"))
        state = run.finish(timeout_s=30)
        assert state.outcome == "fault", run.report()
        assert state.sentence.startswith(f"step 3: {of} of layer {layer} is not finite")
        assert max(run.losses()) <= 2, "no step is taken on numbers that are not finite"


def test_a_merged_node_finds_it_in_either_of_its_stages() -> None:
    with cluster(job(Kill(step=1, stage=2, phase="forward"))) as run:
        run.start(faults=dict.fromkeys(range(4), "overflow:output,5,7,3"))
        state = run.finish(timeout_s=30)
        assert state.outcome == "fault", run.report()
        assert state.sentence.startswith("step 5: output of microbatch 7 of layer 3"), (
            state.sentence
        )


def test_training_that_diverges_ends_at_fault() -> None:
    settings = job()
    settings = replace(settings, train=replace(settings.train, learning_rate=1e25))
    with cluster(settings) as run:
        run.start()
        state = run.finish(timeout_s=30)
        assert state.outcome == "fault", run.report()
        assert "is not finite" in state.sentence


def test_a_layer_that_raises_ends_the_run_with_its_words() -> None:
    with cluster(job()) as run:
        run.start(faults={2: "crash:3"})
        state = run.finish(timeout_s=30)
        assert state.outcome == "fault"
        assert "node i-02.1 failed: RuntimeError: planted" in state.sentence


def test_a_gpu_without_room_is_a_loss_of_its_node_alone() -> None:
    with cluster(job()) as run:
        run.start(faults={2: "full_gpu:3"})
        state = run.finish(timeout_s=30)
        assert state.outcome == "done", run.report()
        assert not difference(run)
        (failed,) = (d.event for d in run.decisions() if isinstance(d.event, NodeFailed))
        assert (failed.node, failed.scope, failed.step) == ("i-02.1", FaultScope.DEVICE, 3)
        assert "Tried to allocate 2.00 GiB" in failed.reason
        assert 'resume it with cluster.recompute = "layer"' in failed.reason
        assert [node for node, status in run.statuses().items() if status] == ["i-02.1"]


# ---------------------------------------------------------------- while the run forms


def test_a_node_lost_while_the_run_forms_is_replaced() -> None:
    with cluster(job()) as run:
        run.start(3)
        run.wait(lambda s: len(s.nodes) == 3, 20, "three nodes")
        run.kill("i-01.1")
        # No peer is connected to it yet: here its agent would say so.
        run.append(PeerLost(node=NodeId("i-01.1"), reporter="agent", cause="exit"))
        run.start(2)
        assert_calm(run)
        joined = [d.event.node for d in run.decisions() if isinstance(d.event, NodeJoined)]
        assert len(joined) == 5
