"""The checkpoints of a planned job: how often, where to, and what they cost.

Rule: the planner chooses the interval (`bamboo.planner.risks.checkpoint_cost`). This file only
reads what the job says of it, and puts the choice into words.
"""

from dataclasses import dataclass, replace
from typing import Any

from bamboo.config.tree import JobConfig
from bamboo.planner.plans.plan import Plan
from bamboo.planner.prices.auxiliary import store_usd_per_hour
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.planner.risks.checkpoint_cost import AUTO_LEAST_S, LONGEST_S, REQUESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The checkpoints of a plan, in figures."""

    every_steps: int
    """Steps between two checkpoints; 0: none is written."""
    every_s: float
    """Time of these steps when they are calm."""
    planned: bool
    """Whether the job leaves the interval to the plan."""
    run_s: float
    """Time of all steps when they are calm."""
    fatal_per_hour: float
    cost_s: float
    """Training time that one checkpoint costs."""
    stored_bytes: float
    """Bytes of all kept checkpoints, and of one more while it is written."""
    bucket: bool
    usd_per_hour: float
    """Storage and requests; 0 without a bucket."""

    @property
    def share(self) -> float:
        """Share of the training time that checkpoints cost."""
        return self.cost_s / self.every_s if self.every_s else 0.0

    def body(self) -> dict[str, Any]:
        """The value in `--json`."""
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
    """Steps between two checkpoints as the job gives them; None: it leaves them to the plan."""
    every = job.checkpoint.every_steps
    return None if isinstance(every, str) else every


def with_interval(job: JobConfig, every_steps: int) -> JobConfig:
    """The job with the plan's interval, if the job leaves it open."""
    if given_every(job) is not None:
        return job
    return replace(job, checkpoint=replace(job.checkpoint, every_steps=every_steps))


def in_bucket(job: JobConfig) -> bool:
    """Whether checkpoints go to a bucket, where each request costs money."""
    url = job.checkpoint.url
    return url.startswith("s3://") or (not url and job.cloud.provider == "ec2")


def put_usd(job: JobConfig, catalogue: Catalogue) -> float:
    """Price of a request that writes to the checkpoints; 0 where they go to a directory, or the
    price is unknown."""
    price = catalogue.auxiliary.get("put")
    return price.usd / REQUESTS if price is not None and in_bucket(job) else 0.0


def kept_by(job: JobConfig, plan: Plan, catalogue: Catalogue) -> Kept | None:
    """The checkpoints of a planned job; None where the time of a step is unknown."""
    if plan.full is None:
        return None
    every = plan.checkpoint_every
    step_s = plan.full.step_s
    shards = plan.shards
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
