"""From a job to what is simulated of it: workload, policy, market, price.

Rule: the same plan, policy and cuts as a launch of the job would have; what only the simulator
needs beside them is said in its own options.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bamboo.config.load import load_job
from bamboo.config.policy import policy_of
from bamboo.config.resolve import batch_shape
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.sim.ours import Pauses
from bamboo.sim.run import Asked
from bamboo.sim.workload import Workload
from bamboo.sim.world import Terms
from cli import wiring
from cli.planning import Planned, grid_of, layer_facts, plan_job

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
    seen = wiring.run_preflight(job)
    planned = plan_job(job, seen, run=RunId("simulated"), now_s=0.0)
    workload = workload_of(job, planned, seen["layers"])
    policy = policy_of(job, planned.cuts, spread=planned.plan.spread)
    asked = Asked(
        workload=workload,
        policy=policy,
        grid=grid_of(job),
        redundancy=job.cluster.redundancy,
        standbys=job.cluster.standbys,
        patience_s=job.cluster.patience_s,
        park_s=job.cluster.park_s,
        terms=terms,
        pauses=pauses,
        usd_per_hour=planned.usd_per_hour / planned.plan.instances,
        horizon_s=hours * HOUR_S,
        last_step=job.train.steps,
    )
    return Simulated(asked=asked, planned=planned, job=job)


def workload_of(job: JobConfig, planned: Planned, layers: Sequence[Mapping[str, Any]]) -> Workload:
    """The layers of a job with their times: those of the virtual device, which gives every layer
    of a stage an equal part, or those that the preflight measured."""
    facts = layer_facts(job, layers)
    cuts = {len(cut) - 1: cut for cut in planned.cuts}
    cluster = job.cluster
    kind = planned.catalogue.find(planned.pool.instance_type)
    bytes_per_s = cluster.virtual_link_gbps * 1e9 / 8
    if cluster.device == "virtual":
        source = "given: the virtual device's figures"
        forward_s = _by_layer(cluster.virtual_forward_ms, planned.plan.cut)
        backward_s = _by_layer(cluster.virtual_backward_ms, planned.plan.cut)
    else:
        source = "measured on this machine's CPU, with a core for every node"
        forward_s = tuple(float(layer["forward_ms"]) / 1e3 for layer in layers)
        backward_s = tuple(float(layer["backward_ms"]) / 1e3 for layer in layers)
    return Workload(
        name=Path(job.file).name,
        source=source,
        layers=facts,
        forward_s=forward_s,
        backward_s=backward_s,
        shape=batch_shape(job),
        batch=job.train.batch,
        latency_s=cluster.virtual_link_latency_ms / 1e3,
        bytes_per_s=bytes_per_s,
        state_bytes_per_s=bytes_per_s or kind.network_gbps * 1e9 / 8,
        store_bytes_per_s=kind.network_gbps * 1e9 / 8,
        cuts=cuts,
    )


def _by_layer(figures_ms: Sequence[float], cut: Sequence[int]) -> tuple[float, ...]:
    stages = len(cut) - 1
    figures = tuple(figures_ms) * (stages if len(figures_ms) == 1 else 1)
    return tuple(
        figure / 1e3 / (stop - first)
        for figure, (first, stop) in zip(figures, pairwise(cut), strict=True)
        for _ in range(first, stop)
    )
