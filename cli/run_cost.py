"""The figures of `bamboo cost RUN`: what a run came to, or has come to by now.

Rule: the bill is that of the cloud's log, at one instant for all figures: the end of the run, when
a killed one was seen last, or when its launcher last wrote to the ledger.
"""

import time
from typing import Any

from bamboo.coord.follow import all_records
from bamboo.coord.ledger import STREAM, ThroughputRecord, ValueRecord, decode_record
from bamboo.errors import InputError
from bamboo.planner.value import MICRO, per_usd_spent, samples_per_s, tokens_per_usd
from cli import wiring
from cli.live import live_store
from cli.look import job_of, status_of, store_may_answer
from cli.parts import ended_at_s
from cli.resizes import resizes_of
from cli.runs import RunFolder, part_of
from cli.spent import spent_on
from cli.terms import promised

STALE_S = 15.0
"""A ledger that nobody wrote to for so long has no launcher."""


def cost_of_run(folder: RunFolder, *, now_s: float | None = None) -> dict[str, Any]:
    """What a run came to, or has come to by now: by its ledger while it lives, by its receipt
    afterwards, and by its files where it was killed without one."""
    planned = {"planned": promised(folder)}
    if folder.receipt.exists():
        return _of_receipt(folder) | {"resizes": resizes_of(folder)} | planned
    if _is_lost(folder):
        return _of_files(folder) | {"resizes": resizes_of(folder)} | planned
    return _of_store(folder, now_s=time.time() if now_s is None else now_s) | planned


def _of_receipt(folder: RunFolder) -> dict[str, Any]:
    body = folder.read_json(folder.receipt)
    spent = spent_on(folder, store=None, steps=int(body["step"]), now_s=float(body["ended_s"]))
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
        "spent": spent,
    }


def _is_lost(folder: RunFolder) -> bool:
    """Whether it was killed with its store, and the cloud's log is there. A store that was killed
    may leave its socket, which nobody answers."""
    endpoint = folder.live_endpoint()
    gone = endpoint is None or not store_may_answer(str(endpoint["store_url"]))
    if endpoint is not None and "cloud" in endpoint and not gone:
        cloud = wiring.local_cloud_of(folder)
        gone = cloud.has_store and not cloud.alive()
    return gone and folder.cloud.exists() and not folder.starting()


def _of_files(folder: RunFolder) -> dict[str, Any]:
    """Of a run that left no receipt: until it was seen last."""
    job, step = job_of(folder), int(status_of(folder)["step"])
    ended_s = ended_at_s(folder)
    spent = spent_on(folder, store=None, steps=step, now_s=ended_s)
    if spent is None:
        raise InputError(f"run {folder.id} was killed before it had an instance")
    usd = spent["bill_micro_usd"] / MICRO
    passed_s = max(part_of(folder).led_before_s + ended_s - part_of(folder).started_s, 1e-9)
    samples = step * job.train.batch
    per_usd = per_usd_spent(samples, usd)
    return {
        "run": folder.id,
        "ended": True,
        "modelled": job.cloud.provider == "local",
        "usd": usd,
        "on_demand_usd": spent["on_demand_micro_usd"] / MICRO,
        "step": step,
        "samples_per_s": samples_per_s(samples, passed_s),
        "samples_per_usd": per_usd,
        "tokens_per_usd": tokens_per_usd(per_usd, job.model.context),
        "spent": spent,
    }


def _of_store(folder: RunFolder, *, now_s: float) -> dict[str, Any]:
    job = job_of(folder)
    with live_store(folder) as store:
        records = [decode_record(text) for text in all_records(store, STREAM)]
        values = [r for r in records if isinstance(r, ValueRecord)]
        rates = [r for r in records if isinstance(r, ThroughputRecord)]
        if not values or not rates:
            raise InputError(f"the ledger of run {folder.id} is still empty; ask again in a moment")
        newest = values[-1]
        # One instant for all figures, unless nobody has written for a while: it costs on.
        at_s = now_s if now_s - newest.at_s > STALE_S else newest.at_s
        spent = spent_on(folder, store=store, steps=newest.step, now_s=at_s)
    usd = spent["bill_micro_usd"] / MICRO if spent else newest.usd
    # Of the dollars that are shown: the ledger's own are of when it was written to last.
    per_usd = per_usd_spent(newest.step * job.train.batch, usd)
    return {
        "run": folder.id,
        "ended": False,
        "modelled": True,
        "usd": usd,
        "on_demand_usd": spent["on_demand_micro_usd"] / MICRO if spent else newest.on_demand_usd,
        "step": newest.step,
        "samples_per_s": rates[-1].samples_per_s,
        "samples_per_usd": per_usd,
        "tokens_per_usd": tokens_per_usd(per_usd, job.model.context),
        "spent": spent,
        "resizes": resizes_of(folder, records),
    }
