"""The figures of `bamboo cost JOB`: what a grid costs per hour, and what samples cost.

Every throughput says where it is from: measured here, or given by the user.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bamboo.config.catalogue import load_catalogue
from bamboo.config.load import load_job
from bamboo.ids import RunId
from bamboo.planner.value import samples_per_usd, tokens_per_usd, usd_per_hour
from cli import wiring
from cli.planning import cheapest_pool, nodes_of, plan_job, zone_prices

GIVEN = "given with --samples-per-s"


def cost_of_job(path: Path, *, overrides: Sequence[str], samples_per_s: float) -> dict[str, Any]:
    """Price the job's grid. Without a given figure a microbatch is measured on this machine."""
    job = load_job(path, overrides)
    catalogue = load_catalogue()
    pool, _ = cheapest_pool(job, catalogue)
    kind = catalogue.find(pool.instance_type)
    count = nodes_of(job)
    source = GIVEN
    if samples_per_s <= 0:
        planned = plan_job(job, wiring.run_preflight(job), run=RunId("cost"), now_s=0.0)
        expected = planned.plan.expected
        assert expected is not None
        samples_per_s, source = expected.samples_per_s, expected.source
    on_demand = usd_per_hour([kind.on_demand_usd_per_hour] * count)
    spot = {z: usd_per_hour([p] * count) for z, p in zone_prices(job, catalogue, kind.name).items()}

    def value(price: float) -> dict[str, float]:
        samples = samples_per_usd(samples_per_s, price)
        tokens = tokens_per_usd(samples, job.model.context)
        return {"usd_per_hour": price, "samples_per_usd": samples, "tokens_per_usd": tokens}

    return {
        "job": str(path),
        "grid": {"pipelines": job.cluster.pipelines, "stages": job.cluster.stages},
        "instances": count,
        "instance_type": kind.name,
        "gpu": kind.gpu,
        "catalogue": {"on_demand_seen": catalogue.on_demand_seen, "spot_seen": catalogue.spot_seen},
        "samples_per_s": samples_per_s,
        "samples_per_s_source": source,
        "on_demand": value(on_demand),
        "spot": {zone: value(price) for zone, price in spot.items()},
    }
