"""Whether a plan can be finished within the limits of its job; checked before anything is started.

Rule: the limits are compared with the least that the plan can cost: all steps calm, on the fastest
grid, at present prices, with overheads as the receipt counts them. A job that exceeds its limits
even so is refused with both figures. A job that may be stopped at its limits sets `budget.partial`.
It is still refused where the billed minimum of its instances alone exceeds the limit.
"""

from bamboo.config.tree import BudgetConfig, JobConfig
from bamboo.errors import InputError
from bamboo.planner.prices.auxiliary import Beside, beside_run
from bamboo.quantities import count, duration, usd
from bamboo.study.planning import Planned
from bamboo.topology.grid import Grid
from bamboo.value import MICRO, bill_micro_usd


def refuse_beyond(
    job: JobConfig,
    planned: Planned,
    *,
    from_step: int = 0,
    spent_usd: float = 0.0,
    traced: bool = False,
) -> None:
    """Raises InputError where the steps from `from_step` on cannot be finished within the limits.
    `spent_usd` is what earlier parts of the run have cost. With `traced` a trace decides how many
    nodes there are, so the time that the steps take is unknown."""
    budget, plan = job.budget, planned.plan
    refuse_too_few_instances(job, plan.largest, standbys=plan.instances - plan.largest.size)
    if 0 < budget.max_usd <= spent_usd:
        word = " (modelled)" if job.cloud.provider == "local" else ""
        raise _at(job, "max_usd", f"the run has cost {usd(spent_usd)} already{word}", "raise it")
    if traced:
        return
    if budget.partial:
        _refuse_beyond_start(job, planned, spent_usd=spent_usd)
    elif planned.plan.expected is not None:
        _refuse_beyond_time(budget, job, planned, from_step=from_step, spent_usd=spent_usd)


def refuse_too_few_instances(job: JobConfig, grid: Grid, *, standbys: int) -> None:
    """Raises InputError where a grid and its standbys are more than the job may have."""
    needed = grid.size + standbys
    if not 0 < job.budget.max_instances < needed:
        return
    spare = f" and {count(standbys, 'standby')}" if standbys else ""
    raise _at(
        job,
        "max_instances",
        f"the plan needs {count(needed, 'instance')}, for a grid of "
        f"{grid.pipelines} x {grid.stages}{spare}",
        "raise it, or take fewer cluster.stages, pipelines or standbys",
    )


def _refuse_beyond_start(job: JobConfig, planned: Planned, *, spent_usd: float) -> None:
    """Raises InputError where the least that the instances are billed for exceeds the limit."""
    least_usd = bill_micro_usd(0.0, usd_per_hour=planned.usd_per_hour) / MICRO
    if 0 < job.budget.max_usd < spent_usd + least_usd:
        instances = count(planned.plan.instances, "instance")
        before = f", with {usd(spent_usd)} spent before" if spent_usd else ""
        raise _at(
            job,
            "max_usd",
            f"{instances} for {usd(planned.usd_per_hour)}/h cost at least {usd(least_usd)} "
            f"as soon as they are started{before}; no step would be taken",
            f"raise it beyond {usd(spent_usd + least_usd)}, or take fewer nodes",
        )


def _refuse_beyond_time(
    budget: BudgetConfig, job: JobConfig, planned: Planned, *, from_step: int, spent_usd: float
) -> None:
    step_s = planned.least_step_s()
    steps = job.train.steps - from_step
    seconds = steps * step_s
    rate = planned.usd_per_hour
    instances_usd = bill_micro_usd(seconds, usd_per_hour=rate) / MICRO
    beside_usd = beside_plan(planned, steps=steps, step_s=step_s).usd
    cost = spent_usd + instances_usd + beside_usd
    from_what = (
        f"modelled: {count(steps, 'calm step')} of {duration(step_s)}, "
        f"{count(planned.plan.instances, 'instance')} for {usd(rate)}/h"
    )
    remedy = "raise it, take fewer train.steps, or set budget.partial to be stopped at it"
    if 0 < budget.max_usd < cost:
        before = f", {usd(spent_usd)} spent before" if spent_usd else ""
        parts = f"{usd(instances_usd)} for instances, {usd(beside_usd)} beside them{before}"
        what = f"the plan needs at least {usd(cost)}: {parts} ({from_what})"
        raise _at(job, "max_usd", what, remedy)
    if 0 < budget.max_hours < seconds / 3600:
        what = f"the plan needs at least {seconds / 3600:.3g} h ({from_what})"
        raise _at(job, "max_hours", what, remedy)


def beside_plan(planned: Planned, *, steps: int, step_s: float) -> Beside:
    """The overheads while so many calm steps are taken."""
    chosen = planned.plan.chosen
    crossing = 0.0 if chosen is None else chosen.crossing_bytes
    seconds = steps * step_s
    return beside_run(
        planned.catalogue.auxiliary,
        instance_s=planned.plan.instances * seconds,
        lasted_s=seconds,
        crossed_bytes=steps * crossing,
    )


def _at(job: JobConfig, name: str, problem: str, remedy: str) -> InputError:
    return InputError.at(
        file=job.file,
        key=f"budget.{name}",
        value=getattr(job.budget, name),
        problem=problem,
        remedy=remedy,
    )
