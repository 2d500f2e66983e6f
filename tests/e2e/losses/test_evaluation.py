"""Evaluations between steps: they change no bit, and give the same numbers whatever is lost."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from bamboo.config.resolve import resolve
from bamboo.config.tree import EvalConfig, JobConfig, Kill, StopConfig
from bamboo.core.events import EvaluationDone, NoticeReceived
from bamboo.core.state import State
from bamboo.data.evaluation import load_eval
from bamboo.ids import NodeId
from bamboo.runtime.check.calm_eval import CalmEval
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.step.numerics import prepare
from bamboo.topology.slots import Slot
from testbed.calm import assert_calm, difference, trained_by
from testbed.cluster import Cluster, cluster
from tests.e2e.jobs import job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

TEXT = Path(__file__).parents[3] / "CONTRIBUTING.md"
EVAL = EvalConfig(every_steps=3, source="path", path=str(TEXT), samples=21)
"""Eleven microbatches, the last one smaller, before steps 3 and 6."""


def evaluated_job(*kills: Kill, stop: StopConfig | None = None, **settings: Any) -> JobConfig:
    chosen = EVAL if stop is None else replace(EVAL, stop=stop)
    return replace(job(*kills, **settings), eval=chosen)


@lru_cache(maxsize=4)
def _calm(found: JobConfig) -> Mapping[int, str]:
    """Step -> the loss of the evaluation before it, by the calm run; as long as that goes on."""
    prepare(found.cluster)
    workload, data = trained_by(found.model, found.data, found.train)
    evaluated = load_eval(found, None, None)
    assert evaluated is not None
    run, evaluations = CalmRun(found, workload, data), CalmEval(found, workload, evaluated)
    losses = {}
    while run.steps_done < found.train.steps and not evaluations.stopped:
        run.step()
        if evaluations.is_due(run):
            losses[run.steps_done] = evaluations.of(run)[0].hex()
    return losses


def calm_evaluations(found: JobConfig) -> Mapping[int, str]:
    found = resolve(found)
    return _calm(JobConfig(model=found.model, data=found.data, train=found.train, eval=found.eval))


def assert_evaluated(run: Cluster) -> None:
    """Every report of every evaluation has the calm run's numbers, and each was decided on once."""
    found: dict[int, set[str]] = {}
    for record in run.metrics("evaluation"):
        found.setdefault(record["step"], set()).add(record["loss_hex"])
    assert found == {step: {loss} for step, loss in calm_evaluations(run.job).items()}
    noted = [d.event.step for d in run.decisions() if isinstance(d.event, EvaluationDone)]
    assert sorted(set(noted)) == sorted(found)


@pytest.mark.parametrize("stage", [0, pytest.param(1, marks=pytest.mark.full), 2])
def test_a_node_is_lost_in_the_middle_of_an_evaluation(stage: int) -> None:
    kill = Kill(step=3, stage=stage, phase="evaluation", microbatch=4)
    with cluster(evaluated_job(kill, stages=3)) as run:
        run.start()
        assert_calm(run)
        assert len(run.stamps()) == 1
        assert_evaluated(run)


def test_pipelines_share_an_evaluation_and_one_of_them_has_a_notice() -> None:
    with cluster(evaluated_job(pipelines=2, stages=2)) as run:
        leaver = 3
        run.start(faults={leaver: f"held:evaluation,{EVAL.every_steps},{run.directory}"})
        with run.held():
            assert not run.metrics("evaluation")
            assert run.owner(Slot(pipeline=1, stage=1)) == f"i-{leaver:02d}.1"
            deadline_s = time.time() + 30
            run.append(NoticeReceived(node=NodeId(f"i-{leaver:02d}.1"), deadline_s=deadline_s))
        assert_calm(run)
        assert_evaluated(run)


def test_a_new_layout_begins_the_evaluation_again() -> None:
    kill = Kill(step=3, stage=1, pipeline=1, phase="evaluation", microbatch=2)
    settings = {"redundancy": "peer", "pipelines": 2, "stages": 2, "virtual_nodes": 2}
    with cluster(evaluated_job(kill, patience_s=0.1, **settings)) as run:
        run.start()
        assert_calm(run)
        assert run.state().grid.pipelines == 1
        assert_evaluated(run)


def test_evaluations_end_a_run_where_a_calm_one_ends() -> None:
    """A loss that falls is never higher than the first one; the run ends with the second."""
    kill = Kill(step=6, stage=2, phase="evaluation", microbatch=9)
    stop = StopConfig(metric="loss", patience=1, better="higher")
    with cluster(evaluated_job(kill, stop=stop, steps=12, stages=3)) as run:
        run.start()
        state: State = run.finish()
        assert state.outcome == "done", run.report()
        assert "no better" in state.sentence
        assert max(calm_evaluations(run.job)) == 6
        assert not difference(run, 6)
        assert_evaluated(run)
