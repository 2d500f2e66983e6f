"""Checkpoints of a job as its plan has them: how often, where to, and what they cost.

Rule: the interval is the planner's (`bamboo.planner.checkpoint_cost`); here is only what the job
says of it, and what a reader is told.
"""

from dataclasses import dataclass, replace
from typing import Any

from bamboo.config.tree import JobConfig
from bamboo.planner.auxiliary import store_usd_per_hour
from bamboo.planner.catalogue import Catalogue
from bamboo.planner.checkpoint_cost import AUTO_LEAST_S, LONGEST_S, REQUESTS
from bamboo.planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The checkpoints of a plan, in figures."""

    every_steps: int
    """0: none is written."""
    every_s: float
    """Of calm steps."""
    planned: bool
    """Whether the job leaves the interval to the plan."""
    run_s: float
    """All calm steps."""
    fatal_per_hour: float
    cost_s: float
    """What one takes of the training."""
    stored_bytes: float
    """Of all that are kept, and one more while it is written."""
    bucket: bool
    usd_per_hour: float
    """Storage and requests; 0 without a bucket."""

    @property
    def share(self) -> float:
        """Of the time."""
        return self.cost_s / self.every_s if self.every_s else 0.0

    def body(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {
            "every_steps": self.every_steps,
            "every_s": self.every_s if self.every_steps else None,
            "chosen_by": "plan" if self.planned else "job",
            "time_share": self.share,
            "usd_per_hour": self.usd_per_hour,
            "stored_bytes": self.stored_bytes,
            "bucket": self.bucket,
            "fatal_losses_per_hour": self.fatal_per_hour,
            "longest_s": LONGEST_S,
            "none_below_s": AUTO_LEAST_S,
        }


def given_every(job: JobConfig) -> int | None:
    """Steps between two checkpoints as the job says; None: it leaves them to the plan."""
    every = job.checkpoint.every_steps
    return None if isinstance(every, str) else every


def with_interval(job: JobConfig, every_steps: int) -> JobConfig:
    """The job with what its plan says where it leaves that open."""
    if given_every(job) is not None:
        return job
    return replace(job, checkpoint=replace(job.checkpoint, every_steps=every_steps))


def in_bucket(job: JobConfig) -> bool:
    """Whether checkpoints go where each request is paid."""
    url = job.checkpoint.url
    return url.startswith("s3://") or (not url and job.cloud.provider == "ec2")


def put_usd(job: JobConfig, catalogue: Catalogue) -> float:
    """Of a request that writes to the checkpoints; 0: they go to a directory, or nobody knows."""
    price = catalogue.auxiliary.get("put")
    return price.usd / REQUESTS if price is not None and in_bucket(job) else 0.0


def kept_by(job: JobConfig, plan: Plan, catalogue: Catalogue) -> Kept | None:
    """Of a planned job; None: nobody knows how long a step takes."""
    if plan.full is None:
        return None
    every, step_s, shards = plan.checkpoint_every, plan.full.step_s, plan.shards
    stored = (job.checkpoint.keep + 1) * sum(shards.stage_bytes) if every else 0.0
    usd = 0.0
    if every and in_bucket(job):
        usd = store_usd_per_hour(
            catalogue.auxiliary,
            step_s=step_s,
            checkpoint_bytes=shards.stage_bytes,
            every_steps=every,
            keep=job.checkpoint.keep,
        )
    return Kept(
        every_steps=every,
        every_s=every * step_s,
        planned=plan.given_every is None,
        run_s=step_s * job.train.steps,
        fatal_per_hour=plan.chosen.fatal_per_hour if plan.chosen is not None else 0.0,
        cost_s=shards.cost_s,
        stored_bytes=stored,
        bucket=in_bucket(job),
        usd_per_hour=usd,
    )
