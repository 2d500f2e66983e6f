"""From a job to what is simulated of it: workload, policy, market, price.

Rule: the same plan, policy and cuts as a launch of the job would have; what only the simulator
needs beside them is said in its own options.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bamboo.config.load import load_job
from bamboo.config.policy import policy_of
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.sim.ours import Pauses
from bamboo.sim.run import Asked
from bamboo.sim.world import Terms
from cli import wiring
from cli.planning import Planned, grid_of, plan_job

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A job made ready to be simulated, and what its figures were made from."""

    asked: Asked
    planned: Planned
    job: JobConfig


def prepare(
    path: Path, *, overrides: Sequence[str], hours: float, terms: Terms, pauses: Pauses
) -> Simulated:
    """Plan the job as a launch would. Raises InputError."""
    if not 0 < hours < 24 * 366:
        raise InputError(f"--hours {hours:g} is no time to simulate; give hours above 0")
    job = load_job(path, overrides)
    planned = plan_job(job, wiring.run_preflight(job), run=RunId("simulated"), now_s=0.0)
    policy = policy_of(job, planned.cuts, grids=planned.grids, spread=planned.plan.spread)
    asked = Asked(
        workload=planned.workload,
        policy=policy,
        grid=grid_of(job),
        redundancy=job.cluster.redundancy,
        standbys=job.cluster.standbys,
        patience_s=job.cluster.patience_s,
        park_s=job.cluster.park_s,
        terms=terms,
        pauses=pauses,
        usd_per_hour=planned.usd_per_hour / planned.plan.instances,
        on_demand_usd_per_hour=planned.plan.instance_type.on_demand_usd_per_hour,
        horizon_s=hours * HOUR_S,
        last_step=job.train.steps,
    )
    return Simulated(asked=asked, planned=planned, job=job)
