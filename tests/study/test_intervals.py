"""The interval between checkpoints from a job to its plan, its policy and its bits."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.config.load import job_from_json, job_to_json
from bamboo.config.policy import policy_of
from bamboo.config.resolve import resolve
from bamboo.config.tree import CheckpointConfig, CloudConfig, ClusterConfig, JobConfig, ModelConfig
from bamboo.config.tree import TrainConfig as Train
from bamboo.controller import resuming
from bamboo.controller.terms import job_to_plan, save_terms
from bamboo.errors import CoreMisuse
from bamboo.ids import RunId
from bamboo.runs.run_folder import RunFolder, job_of, write_json
from bamboo.study.planning import Planned, plan_job
from bamboo.study.workload import semantics_of
from cli.views.plan import plan_body, plan_text
from tests.study.facts import seen

LONG = JobConfig(
    model=ModelConfig(layers=6, width=64, heads=2, context=16),
    train=Train(steps=100_000, batch=8, microbatch=2),
    cluster=ClusterConfig(
        stages=4, device="virtual", virtual_forward_ms=(20.0,), virtual_backward_ms=(40.0,)
    ),
    cloud=CloudConfig(instance_types=("g5.xlarge",)),
    file="job.toml",
)


def plan(job: JobConfig = LONG) -> Planned:
    job = resolve(job)
    return plan_job(job, {**seen(job), "cores": 64}, run=RunId("r"), now_s=1000.0)


def with_every(every_steps: int | str) -> JobConfig:
    return replace(LONG, checkpoint=CheckpointConfig(every_steps=every_steps))


def short(text: str) -> str:
    return " ".join(text.split())


def test_a_long_job_that_says_nothing_has_the_interval_of_its_plan_in_its_policy() -> None:
    planned = plan()
    every = planned.plan.checkpoint_every
    assert 1 < every < LONG.train.steps
    assert planned.job.checkpoint.every_steps == every
    assert policy_of(planned.job, planned.cuts).checkpoint_every == every
    assert f"a checkpoint every {every} steps" in short(plan_text("r", planned))
    body = plan_body("r", planned)["checkpoints"]
    assert (body["every_steps"], body["chosen_by"]) == (every, "plan")
    assert 0 < body["time_share"] <= 0.01
    assert body["stored_bytes"] == 3 * 12 * planned.plan.parameters
    # What was planned is what is kept: planned again, it stays.
    again = plan(job_from_json(job_to_json(planned.job)))
    assert again.job.checkpoint == planned.job.checkpoint
    assert plan_body("r", again)["checkpoints"]["chosen_by"] == "job"


@pytest.mark.parametrize(("every", "left"), [("auto", "auto"), (0, 0), (7, 7)])
def test_another_plan_of_a_run_has_what_its_job_says_of_the_interval(
    tmp_path: Path, every: int | str, left: int | str
) -> None:
    """A run of three minutes has no checkpoints by its plan; with a thousand times as many steps,
    or on other nodes, it may be worth some."""
    folder = RunFolder(id=RunId("r"), path=tmp_path)
    few = replace(with_every(every), train=replace(LONG.train, steps=100))
    planned = plan(few)
    save_terms(folder, planned.job, planned, started_s=1.0, detached=False)
    assert isinstance(job_of(folder).checkpoint.every_steps, int), "the run itself has a number"
    assert job_to_plan(folder).checkpoint.every_steps == left
    write_json(folder.receipt, {"step": 100, "outcome": "done"})
    asked = resuming._asked(folder, (), steps=LONG.train.steps)
    assert (plan(asked.job).plan.checkpoint_every > 0) == (every != 0)
    assert resuming._asked(
        folder, ("checkpoint.every_steps=9",), steps=LONG.train.steps
    ).job.checkpoint == CheckpointConfig(every_steps=9)


def test_a_short_job_has_none_unless_it_says_so_and_a_long_one_may_say_none() -> None:
    few = replace(LONG, train=replace(LONG.train, steps=100))
    planned = plan(few)
    assert planned.job.checkpoint.every_steps == 0
    assert "no periodic checkpoint: all steps take" in short(plan_text("r", planned))
    assert plan(replace(few, checkpoint=CheckpointConfig(every_steps=7))).plan.checkpoint_every == 7
    never = plan(with_every(0))
    assert policy_of(never.job, never.cuts).checkpoint_every == 0
    assert "no periodic checkpoint, as the job says" in short(plan_text("r", never))


def test_where_requests_are_paid_they_come_less_often_and_their_price_is_said() -> None:
    free, paid = plan(), plan(replace(LONG, checkpoint=CheckpointConfig(url="s3://bucket/runs")))
    assert paid.plan.checkpoint_every > free.plan.checkpoint_every
    kept = paid.kept()
    assert kept is not None
    assert kept.usd_per_hour > 0
    assert kept.usd_per_hour < paid.usd_per_hour / 50
    assert "/h with the requests" in short(plan_text("r", paid))


def test_what_no_plan_has_been_through_has_no_interval() -> None:
    with pytest.raises(CoreMisuse, match="plan the job"):
        policy_of(resolve(LONG), ((0, 2, 4, 6, 8),))


@given(st.one_of(st.just("auto"), st.integers(0, 10**6)))
def test_the_interval_is_no_part_of_the_semantics(every: int | str) -> None:
    looked = seen(resolve(LONG))
    with_it, without = (resolve(with_every(steps)) for steps in (every, 0))
    assert semantics_of(with_it, looked) == semantics_of(without, looked)
