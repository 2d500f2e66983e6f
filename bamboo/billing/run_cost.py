"""The figures of `bamboo cost RUN`: what a run cost, or has cost by now.

Rule: the bill comes from the cloud's log, at one instant for all figures. The instant is the end of
the run, the time when a killed run was last seen, the last write of its launcher to the ledger, or
now where the ledger does not answer.
"""

import time
from collections.abc import Mapping
from typing import Any

from bamboo.billing.parts import ended_at_s
from bamboo.billing.spent import spent_on
from bamboo.coord.follow import all_records
from bamboo.coord.ledger import STREAM, ThroughputRecord, ValueRecord, decode_record
from bamboo.errors import InputError, StoreRefused
from bamboo.planner.value import MICRO, per_usd_spent, samples_per_s, tokens_per_usd
from bamboo.quantities import micro_text
from bamboo.runs import live, lock
from bamboo.runs.live import StoreSilent, live_store
from bamboo.runs.resizes import resizes_of
from bamboo.runs.run_folder import RunFolder, part_of
from bamboo.runs.run_status import job_of, promised, status_by_books, status_of, store_is_gone

NOT_TOLD = "neither the cloud's log nor a ledger says where the money went"
STALE_S = 15.0
"""A ledger without a write for so long has no launcher."""


def cost_of_run(folder: RunFolder, *, now_s: float | None = None) -> dict[str, Any]:
    """What a run cost, or has cost by now: by its ledger while it lives, by its receipt afterwards,
    and by its files where it was killed without a receipt or its store does not answer."""
    planned = {"planned": promised(folder)}
    is_lost = _is_lost(folder)  # checked first: a launcher leaves its receipt before it exits
    if folder.receipt.exists():
        return _of_receipt(folder) | {"resizes": resizes_of(folder)} | planned
    if is_lost:
        return _of_files(folder) | {"resizes": resizes_of(folder)} | planned
    at_s = time.time() if now_s is None else now_s
    try:
        return _of_store(folder, now_s=at_s) | planned
    except (StoreSilent, StoreRefused):
        found = _of_silent(folder, now_s=at_s)
    return found | {"resizes": resizes_of(folder)} | planned


def _of_receipt(folder: RunFolder) -> dict[str, Any]:
    body = folder.read_json(folder.receipt)
    spent = spent_on(folder, store=None, steps=int(body["step"]), now_s=float(body["ended_s"]))
    unspent = _unlike(folder, spent, usd=float(body["bill"]["usd"]))
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
        "spent": None if unspent else spent,
        "unspent": unspent,
    }


def _unlike(folder: RunFolder, spent: Mapping[str, Any] | None, *, usd: float) -> str:
    """Why it is unknown where the money of a receipt went, or ""."""
    if spent is None:
        return NOT_TOLD
    found, paid = int(spent["bill_micro_usd"]), round(usd * MICRO)
    if found == paid:
        return ""
    return (
        f"where the money went is not shown: {folder.cloud} comes to {micro_text(found)}, and the "
        f"receipt to {micro_text(paid)}: one of them is damaged, or was written to since"
    )


def _is_lost(folder: RunFolder) -> bool:
    """Whether the run was killed with its store, and the cloud's log exists. A killed store may
    leave a socket that does not answer."""
    if not lock.is_free(folder):
        return False  # it is ending, and writes its receipt next
    endpoint, gone = folder.live_endpoint(), store_is_gone(folder)
    if endpoint is not None and "cloud" in endpoint and not gone:
        cloud = live.local_cloud_of(folder)
        gone = cloud.has_store and not cloud.alive()
    return gone and folder.cloud.exists() and not folder.starting()


def _of_files(folder: RunFolder) -> dict[str, Any]:
    """For a run without a receipt: until it was last seen."""
    step, ended_s = int(status_of(folder)["step"]), ended_at_s(folder)
    spent = spent_on(folder, store=None, steps=step, now_s=ended_s)
    if spent is None:
        raise InputError(f"run {folder.id} was killed before it had an instance")
    return {"ended": True} | _by_books(folder, spent, step=step, now_s=ended_s)


def _of_silent(folder: RunFolder, *, now_s: float) -> dict[str, Any]:
    """For a run whose store does not answer. While it has a launcher the bill goes on until now,
    since its instances are still paid."""
    if folder.receipt.exists():  # written while we waited for the store
        return _of_receipt(folder)
    if lock.is_free(folder):
        return _of_files(folder)
    status = status_by_books(folder)
    step = int(status["step"])
    spent = spent_on(folder, store=None, steps=step, now_s=now_s, lives=True)
    if spent is None and not step:
        raise InputError(
            f"run {folder.id} does not answer, and has written nothing down yet; ask again in a "
            "moment"
        )
    body = _by_books(folder, spent, step=step, now_s=now_s, noted_usd=float(status["usd"]))
    return {"ended": False} | body | {"silent": status["sentence"]}


def _by_books(
    folder: RunFolder,
    spent: Mapping[str, Any] | None,
    *,
    step: int,
    now_s: float,
    noted_usd: float = 0.0,
) -> dict[str, Any]:
    """`noted_usd` is the bill at the step that was noted last, for when the cloud's log is missing.
    The on-demand part is then unknown and 0."""
    job = job_of(folder)
    usd = spent["bill_micro_usd"] / MICRO if spent else noted_usd
    passed_s = max(part_of(folder).led_before_s + now_s - part_of(folder).started_s, 1e-9)
    samples = step * job.train.batch
    per_usd = per_usd_spent(samples, usd)
    return {
        "run": folder.id,
        "modelled": job.cloud.provider == "local",
        "usd": usd,
        "on_demand_usd": spent["on_demand_micro_usd"] / MICRO if spent else 0.0,
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
        # One instant for all figures; where the last write is old it is now, since the run still
        # costs money.
        at_s = now_s if now_s - newest.at_s > STALE_S else newest.at_s
        spent = spent_on(folder, store=store, steps=newest.step, now_s=at_s)
    usd = spent["bill_micro_usd"] / MICRO if spent else newest.usd
    # It divides the dollars that are shown. The ledger's own value is of its last write.
    per_usd = per_usd_spent(newest.step * job.train.batch, usd)
    return {
        "run": folder.id,
        "ended": False,
        "modelled": job.cloud.provider == "local",
        "usd": usd,
        "on_demand_usd": spent["on_demand_micro_usd"] / MICRO if spent else newest.on_demand_usd,
        "step": newest.step,
        "samples_per_s": rates[-1].samples_per_s,
        "samples_per_usd": per_usd,
        "tokens_per_usd": tokens_per_usd(per_usd, job.model.context),
        "spent": spent,
        "resizes": resizes_of(folder, records),
    }
