"""The figures of `bamboo cost`: what a grid costs per hour, what samples cost, what a run came to.

Every throughput says where it is from: measured here, given by the user, or measured in the run.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bamboo.config.catalogue import load_catalogue
from bamboo.config.load import load_job
from bamboo.coord.follow import all_records
from bamboo.coord.ledger import STREAM, ThroughputRecord, ValueRecord, decode_record
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.planner.value import samples_per_usd, tokens_per_usd, usd_per_hour
from cli import wiring
from cli.live import live_store
from cli.planning import cheapest_pool, nodes_of, plan_job, zone_prices
from cli.runs import RunFolder
from cli.spent import spent_on

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


def cost_of_run(folder: RunFolder) -> dict[str, Any]:
    """The figures in the run's ledger while it lives, and in its receipt afterwards."""
    if folder.receipt.exists():
        body = folder.read_json(folder.receipt)
        return {
            "run": folder.id,
            "ended": True,
            "modelled": body["bill"]["modelled"],
            "usd": body["bill"]["usd"],
            "on_demand_usd": body["bill"]["on_demand_usd"],
            "step": body["step"],
            "samples_per_s": body["samples_per_s"],
            "samples_per_usd": body["samples_per_usd"],
            "tokens_per_usd": body["tokens_per_usd"],
            "spent": spent_on(
                folder, store=None, steps=int(body["step"]), now_s=float(body["ended_s"])
            ),
        }
    with live_store(folder) as store:
        records = [decode_record(text) for text in all_records(store, STREAM)]
        step = max((r.step for r in records if isinstance(r, ValueRecord)), default=0)
        spent = spent_on(folder, store=store, steps=step, now_s=time.time())
    values = [r for r in records if isinstance(r, ValueRecord)]
    rates = [r for r in records if isinstance(r, ThroughputRecord)]
    if not values or not rates:
        raise InputError(f"the ledger of run {folder.id} is still empty; ask again in a moment")
    return {
        "run": folder.id,
        "ended": False,
        "modelled": True,
        "usd": values[-1].usd,
        "on_demand_usd": values[-1].on_demand_usd,
        "step": values[-1].step,
        "samples_per_s": rates[-1].samples_per_s,
        "samples_per_usd": values[-1].samples_per_usd,
        "tokens_per_usd": values[-1].tokens_per_usd,
        "spent": spent,
    }
