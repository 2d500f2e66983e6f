"""Which plans are beyond which limits, by the figures of the plan itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.config.resolve import resolve
from bamboo.config.tree import BudgetConfig, JobConfig
from bamboo.controller import launching
from bamboo.controller.budget import beside_plan, refuse_beyond
from bamboo.errors import InputError
from bamboo.study.planning import Planned
from bamboo.value import MICRO, bill_micro_usd
from tests.jobs import tiny_job
from tests.study.test_planning import JOB, plan

JOB_OF_1000 = replace(JOB, train=replace(JOB.train, steps=1000))


def with_budget(budget: BudgetConfig, job: JobConfig = JOB_OF_1000) -> tuple[JobConfig, Planned]:
    job = resolve(replace(job, budget=budget))
    return job, plan(job)


def needed(steps: int = 1000) -> tuple[float, float]:
    """(Dollars, hours) that so many steps of the job come to, on the plan's own figures."""
    _, planned = with_budget(BudgetConfig())
    assert planned.plan.expected is not None
    step_s = min(planned.plan.expected.step_s, *(grid.step_s for grid in planned.grids))
    paid = bill_micro_usd(steps * step_s, usd_per_hour=planned.usd_per_hour) / MICRO
    beside = beside_plan(planned, steps=steps, step_s=step_s)
    assert 0 < beside.usd < paid
    return paid + beside.usd, steps * step_s / 3600


def refused(budget: BudgetConfig, **more: float) -> str:
    """Why, "" where it may be launched."""
    job, planned = with_budget(budget)
    try:
        refuse_beyond(job, planned, **more)  # type: ignore[arg-type]
    except InputError as error:
        return str(error)
    return ""


def test_a_limit_is_compared_with_the_least_that_the_steps_come_to() -> None:
    usd, hours = needed()
    assert refused(BudgetConfig()) == ""
    assert refused(BudgetConfig(max_usd=usd, max_hours=hours, max_instances=4)) == ""
    dear = refused(BudgetConfig(max_usd=usd - 1e-6))
    assert "budget.max_usd" in dear
    assert "the plan needs at least $" in dear
    assert "(modelled: 1,000 calm steps of" in dear
    assert " for instances, $" in dear
    assert " beside them (" in dear
    assert "budget.max_hours" in refused(BudgetConfig(max_hours=hours * 0.999))
    few = refused(BudgetConfig(max_instances=3))
    assert "budget.max_instances = 3: the plan needs 4 instances, for a grid of 1 x 4;" in few


def test_too_few_instances_are_refused_before_the_model_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(job: JobConfig) -> None:
        raise AssertionError("looked at")

    monkeypatch.setattr(launching, "seen_for_launch", look)
    file, few = tiny_job(tmp_path, []).file, "budget.max_instances=1"
    with pytest.raises(InputError, match="the plan needs 2 instances, for a grid of 1 x 2"):
        launching.prepare(Path(file), overrides=[few], name="", dry_run=False)


def test_what_may_be_stopped_at_its_limits_is_not_refused_for_time_and_money() -> None:
    assert refused(BudgetConfig(max_usd=0.013, max_hours=1e-6, partial=True)) == ""
    assert refused(BudgetConfig(max_usd=1e-6, max_hours=1e-6), traced=True) == ""
    assert "4 instances" in refused(BudgetConfig(max_instances=3, partial=True))


def test_what_its_instances_cost_before_a_step_is_refused_even_so() -> None:
    least = refused(BudgetConfig(max_usd=0.0129, partial=True))
    assert "4 instances for $0.7748/h cost at least $0.0129 as soon as they are started" in least
    spent = refused(BudgetConfig(max_usd=0.02, partial=True), spent_usd=0.008)
    assert "with $0.0080 spent before" in spent


def test_a_run_that_goes_on_needs_the_rest_and_has_spent_something() -> None:
    usd, _ = needed()
    budget = BudgetConfig(max_usd=usd)
    assert " beside them, $0.0100 spent before (modelled: " in refused(budget, spent_usd=0.01)
    left = usd - needed(500)[0]
    assert refused(budget, spent_usd=left - 1e-6, from_step=500) == ""
    assert "spent before" in refused(budget, spent_usd=left + 1e-6, from_step=500)
    spent = refused(replace(budget, partial=True), spent_usd=usd)
    assert "the run has cost" in spent
    assert "already (modelled); raise it" in spent


def test_standbys_and_pipelines_to_come_are_instances_too() -> None:
    job = replace(JOB_OF_1000, cluster=replace(JOB.cluster, standbys=2, max_pipelines=2))
    job, planned = with_budget(BudgetConfig(max_instances=9), job)
    with pytest.raises(InputError, match="10 instances, for a grid of 2 x 4 and 2 standbys"):
        refuse_beyond(job, planned)
