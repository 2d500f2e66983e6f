"""The figures of `bamboo cost RUN`: what a run cost, or has cost by now, and where the money went.

    the cloud's log of starts and ends             ->  the bill
    duties and work of its instances, from the
    ledger, the run's events or the decisions      ->  the uses of every second and micro-dollar

Rules: the bill comes from the cloud's log, at one instant for all figures. The instant is the end
of the run, the time when a killed run was last seen, the last write of its launcher to the ledger,
or now where the ledger does not answer.

The bill does not depend on what an instance did, and the uses do not depend on the bill. They are
equal to the micro-dollar, or `planner.attribution` refuses them.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from bamboo.billing.money import Rented, beside_body, beside_of, rented_in
from bamboo.billing.parts import ended_at_s
from bamboo.config.tree import JobConfig
from bamboo.coord.codec import (
    STREAM,
    LedgerRecord,
    PriceRecord,
    ThroughputRecord,
    ValueRecord,
    decode_record,
    record_of,
)
from bamboo.coord.follow import Follower, all_records
from bamboo.errors import CoreMisuse, InputError, StoreRefused, UnreadableRecord
from bamboo.ids import InstanceId
from bamboo.planner.attribution import Spent, Tenure, Use, Work, attribute
from bamboo.planner.duties import Duty, DutyChange, Roster
from bamboo.planner.fleet.autoscale import Resize
from bamboo.planner.prices.auxiliary import AuxiliaryPrice
from bamboo.ports import Store
from bamboo.quantities import micro_text
from bamboo.runs import live, lock
from bamboo.runs.books import DUTY, PART, RESIZED, TRIED, WORK
from bamboo.runs.decisions import saved_store
from bamboo.runs.live import StoreSilent, live_store
from bamboo.runs.run_folder import RunFolder, catalogue_of, job_of, part_of, parts_before, promised
from bamboo.runs.run_status import status_by_books, status_of, store_is_gone
from bamboo.runs.store_records import Hearing
from bamboo.telemetry.records import read_events, read_metrics
from bamboo.value import MICRO, bill_micro_usd, per_usd_spent, samples_per_s, tokens_per_usd

NOT_TOLD = "neither the cloud's log nor a ledger says where the money went"
STALE_S = 15.0
"""A ledger without a write for so long has no launcher."""
LEDGER = "ledger"
EVENTS = "events"
DECISIONS = "decisions"
"""Where the duties of the instances are from, the best source first."""
WAITING = (Use.BOOTING, Use.FORMING, Use.PARKED)
NOT_MEMBERS = (Duty.BOOTING, Duty.LEAVING)


@dataclass(slots=True, kw_only=True)
class Told:
    """What is known of one part of a run."""

    source: str
    changes: list[DutyChange] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What the answer is made from."""

    job: JobConfig
    rented: Sequence[Rented]
    told: Sequence[Told]
    now_s: float
    """Or when the run ended."""
    live: bool
    part_began_s: float
    steps: int
    crossing_bytes: float
    """Bytes between zones in one step, by the plan of the newest part. Earlier parts, and other
    grids that a part had, are counted with the same figure."""
    prices: Mapping[str, AuxiliaryPrice] = field(default_factory=dict)
    """Prices of the overheads."""


def cost_of_run(folder: RunFolder, *, now_s: float | None = None) -> dict[str, Any]:
    """What a run cost, or has cost by now: by its ledger while it lives, by its receipt afterwards,
    and by its files where it was killed without a receipt or its store does not answer."""
    body = _cost_of_run(folder, now_s=now_s) | {"planned": promised(folder)}
    return body | _tried(folder, body)


def _cost_of_run(folder: RunFolder, *, now_s: float | None) -> dict[str, Any]:
    # The second look comes after the lock's: a launcher leaves its receipt before it exits.
    is_lost = not folder.receipt.exists() and _is_lost(folder)
    if folder.receipt.exists():
        return _of_receipt(folder) | {"resizes": resizes_of(folder)}
    if is_lost:
        return _of_files(folder) | {"resizes": resizes_of(folder)}
    at_s = time.time() if now_s is None else now_s
    try:
        return _of_store(folder, now_s=at_s)
    except (StoreSilent, StoreRefused):
        found = _of_silent(folder, now_s=at_s)
    return found | {"resizes": resizes_of(folder)}


def _tried(folder: RunFolder, body: Mapping[str, Any]) -> dict[str, Any]:
    """What trials of strategies have cost: how many there were, the seconds that they took longer
    than the best strategy that was known, and the share of the bill for that time. Nothing where
    there were none. Raises InputError for a damaged file."""
    path = folder.events / "launcher.jsonl"
    events = read_events(path) if path.exists() else ()
    tried = [record.data for record in events if record.kind == TRIED]
    rate = body["samples_per_s"]
    if not tried or not rate:
        return {}
    excess_s = sum(float(one["excess_s"]) for one in tried)
    passed_s = body["step"] * job_of(folder).train.batch / rate
    return {
        "trials": {
            "count": sum(int(one["trials"]) for one in tried),
            "excess_s": excess_s,
            "usd": body["usd"] * min(1.0, excess_s / passed_s) if passed_s else 0.0,
        }
    }


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
        "unit": body.get("unit", "token"),
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
        **_of_unit(job, per_usd),
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
        **_of_unit(job, per_usd),
        "spent": spent,
        "resizes": resizes_of(folder, records),
    }


def _of_unit(job: JobConfig, samples_per_usd: float) -> dict[str, Any]:
    """What is counted, and the value in tokens: None where the data are no text."""
    tokens = job.tokens_per_sample
    return {
        "unit": job.counted,
        "tokens_per_usd": tokens_per_usd(samples_per_usd, tokens) if tokens else None,
    }


def resizes_of(folder: RunFolder, ledger: Iterable[LedgerRecord] = ()) -> list[dict[str, Any]]:
    """The value of `resizes` in `bamboo cost RUN --json`, oldest first: by the books, which have
    those of every part of the run, else by the ledger of a live run. Raises InputError for a
    damaged file."""
    path = folder.events / "launcher.jsonl"
    booked = [
        dict(record.data["resize"])
        for record in (read_events(path) if path.exists() else ())
        if record.kind == RESIZED
    ]
    return booked or [asdict(record) for record in ledger if isinstance(record, Resize)]


# ---------------------------------------------------------------------- where the money went


def spent_on(
    folder: RunFolder, *, store: Store | None, steps: int, now_s: float, lives: bool = False
) -> dict[str, Any] | None:
    """The value of `spent` in `bamboo cost RUN --json`; None where there is neither the cloud's log
    nor a ledger. `store` is that of a live run, `steps` the number of finished steps, `now_s` now
    or when the run ended. `lives` says that it lives although its store does not answer.

    Raises InputError for damaged files, StoreUnavailable.
    """
    ledger = [decode_record(r) for r in all_records(store, STREAM)] if store is not None else []
    rented = rented_of(folder, ledger)
    if not rented:
        return None
    told: Sequence[Told] = ()
    unknown = ""
    try:
        told = told_of(folder, store=store, ledger=ledger)
        unknown = "" if told else "the run has neither events nor decisions that say so"
    except UnreadableRecord as error:
        unknown = str(error)
    body = folder.read_json(folder.resolved)
    books = Books(
        job=job_of(folder),
        rented=rented,
        told=told,
        now_s=now_s,
        live=lives or store is not None,
        part_began_s=part_of(folder).started_s,
        steps=steps,
        crossing_bytes=float(body.get("crossing_bytes") or 0.0),
        prices=catalogue_of(folder).auxiliary,
    )
    return spent_body(books) | {"unknown": unknown}


def spent_body(books: Books) -> dict[str, Any]:
    """All figures; the bill alone where nothing is known of what the instances did."""
    bill = sum(_billed(item, books.now_s) for item in books.rented)
    on_demand = sum(_billed(item, books.now_s, on_demand=True) for item in books.rented)
    changes = [change for told in books.told for change in told.changes]
    spent: Sequence[Spent] = ()
    if changes:
        work = [one for told in books.told for one in told.work]
        spent = attribute([_tenure(item, books.now_s) for item in books.rented], changes, work)
        parts = sum(one.bill_micro_usd for one in spent)
        if parts != bill:
            raise CoreMisuse(f"the parts come to {parts} micro-dollars and the bill to {bill}")
    crossed = books.steps * books.crossing_bytes + sum(change.crossed_bytes for change in changes)
    beside = beside_of(books.rented, books.prices, now_s=books.now_s, crossed_bytes=crossed)
    return {
        "at_s": books.now_s,
        "bill_micro_usd": bill,
        "on_demand_micro_usd": on_demand,
        "saved_micro_usd": on_demand - bill,
        "instance_seconds": round(sum(_ran_s(item, books.now_s) for item in books.rented), 3),
        "sources": sorted({told.source for told in books.told}),
        "uses": _uses(spent),
        "busy_measured": sum(one.exact for one in spent if Use.USEFUL in one.us),
        "instances": [_instance(item, one) for item, one in zip(books.rented, spent, strict=False)],
        "not_members": _not_members(books, changes, spent),
        "beside": beside_body(beside, crossed_bytes=crossed),
        "usd_per_hour": _usd_per_hour(books),
        "budget": _budget(books, bill + beside.micro_usd),
    }


def rented_of(folder: RunFolder, ledger: Iterable[LedgerRecord]) -> Sequence[Rented]:
    """Every instance, by the cloud's own log, or by the ledger's prices where that is missing."""
    free = job_of(folder).budget.free_first_hour
    if not folder.cloud.exists():
        prices = (record for record in ledger if isinstance(record, PriceRecord))
        return _rented_by(prices, free_first_hour=free)
    types = catalogue_of(folder).types
    on_demand = {name: one.on_demand_usd_per_hour for name, one in types.items()}
    return rented_in(folder.cloud, on_demand_usd_per_hour=on_demand, free_first_hour=free)


def _rented_by(prices: Iterable[PriceRecord], *, free_first_hour: bool) -> Sequence[Rented]:
    newest = {record.instance: record for record in prices}
    return [
        Rented(
            instance=record.instance,
            instance_type=record.instance_type,
            zone=record.zone,
            market=record.market,
            started_at_s=record.at_s,
            ended_at_s=record.until_s,
            interrupted=record.interrupted,
            usd_per_hour=record.usd_per_hour,
            on_demand_usd_per_hour=record.on_demand_usd_per_hour,
            free_first_hour=free_first_hour,
        )
        for record in newest.values()
    ]


def _uses(spent: Sequence[Spent]) -> list[dict[str, Any]]:
    """Every use that anything was spent on, always in the same order."""
    us: Counter[Use] = Counter()
    micro: Counter[Use] = Counter()
    for one in spent:
        us.update(one.us)
        micro.update(one.micro_usd)
    return [
        {
            "use": use.value,
            "group": "waiting for capacity" if use in WAITING else use.value,
            "seconds": us[use] / MICRO,
            "micro_usd": micro[use],
        }
        for use in Use
        if us[use] or micro[use]
    ]


def _instance(item: Rented, spent: Spent) -> dict[str, Any]:
    return {
        "instance": item.instance,
        "zone": item.zone,
        "market": item.market,
        "usd_per_hour": item.usd_per_hour,
        "bill_micro_usd": spent.bill_micro_usd,
        "seconds": {use.value: part / MICRO for use, part in spent.us.items()},
        "micro_usd": {use.value: part for use, part in spent.micro_usd.items()},
    }


def _not_members(
    books: Books, changes: Sequence[DutyChange], spent: Sequence[Spent]
) -> list[dict[str, Any]]:
    """Instances with the run's tag that have no live node of the run; for a finished run, those
    that no node ever joined from."""
    duties = last_duties(changes)
    found = []
    for item, one in zip(books.rented, spent, strict=False):
        instance = InstanceId(item.instance)
        duty, since_s = duties.get(instance, (Duty.BOOTING, item.started_at_s))
        stands = duty in NOT_MEMBERS and item.ended_at_s is None
        if stands if books.live else instance not in duties:
            found.append(
                {
                    "instance": item.instance,
                    "zone": item.zone,
                    "duty": duty.value,
                    "seconds": max(0.0, (item.ended_at_s or books.now_s) - since_s),
                    "bill_micro_usd": one.bill_micro_usd,
                }
            )
    return found


def last_duties(changes: Iterable[DutyChange]) -> Mapping[InstanceId, tuple[Duty, float]]:
    """The duty of each instance after all of these, and since when."""
    found: dict[InstanceId, tuple[Duty, float]] = {}
    for change in changes:
        found |= {taken.instance: (taken.duty, change.at_s) for taken in change.changed}
    return found


def _usd_per_hour(books: Books) -> float:
    """The price of what runs now; for a finished run, the mean while any instance ran."""
    if books.live:
        return sum(item.usd_per_hour for item in books.rented if item.ended_at_s is None)
    ran_s = sum(_ran_s(item, books.now_s) * item.usd_per_hour for item in books.rented)
    return ran_s / max(_any_ran_s(books), 1e-9)


def _any_ran_s(books: Books) -> float:
    """Seconds in which at least one instance ran, without the time between two parts of the run and
    the time after the last instance."""
    passed_s, until_s = 0.0, -inf
    for item in sorted(books.rented, key=lambda item: item.started_at_s):
        end_s = item.started_at_s + _ran_s(item, books.now_s)
        passed_s += max(0.0, end_s - max(item.started_at_s, until_s))
        until_s = max(until_s, end_s)
    return passed_s


def _budget(books: Books, spent: int) -> dict[str, Any] | None:
    """What is left of the budget after `spent`; None without one. `lasts_s`: at the present
    price."""
    budget = books.job.budget
    if not budget.max_usd and not budget.max_hours:
        return None
    left_usd = budget.max_usd - spent / MICRO if budget.max_usd else None
    passed_s = books.now_s - books.part_began_s
    left_s = budget.max_hours * 3600 - passed_s if budget.max_hours else None
    rate = _usd_per_hour(books)
    lasts_s = left_usd / rate * 3600 if left_usd is not None and rate > 0 else None
    limit = budget.max_usd or None
    return {"max_usd": limit, "left_usd": left_usd, "left_s": left_s, "lasts_s": lasts_s}


def _ran_s(item: Rented, now_s: float) -> float:
    return max(0.0, (now_s if item.ended_at_s is None else item.ended_at_s) - item.started_at_s)


def _billed(item: Rented, now_s: float, *, on_demand: bool = False) -> int:
    seconds = _ran_s(item, now_s)
    if on_demand:
        return bill_micro_usd(seconds, usd_per_hour=item.on_demand_usd_per_hour)
    return bill_micro_usd(seconds, usd_per_hour=item.usd_per_hour, free_first_hour=item.taken_free)


def _tenure(item: Rented, now_s: float) -> Tenure:
    return Tenure(
        instance=InstanceId(item.instance),
        started_s=item.started_at_s,
        ended_s=now_s if item.ended_at_s is None else item.ended_at_s,
        usd_per_hour=item.usd_per_hour,
        free_first_hour=item.taken_free,
    )


# ---------------------------------------------------------------------- what the instances did


def told_of(
    folder: RunFolder, *, store: Store | None, ledger: Iterable[LedgerRecord]
) -> list[Told]:
    """What is known of the instances, part by part, each from the best source: the ledger of a live
    run; where it has lost records, the events in the run's folder; for a run of a release that
    wrote neither, the decisions. `store` and its `ledger` are those of a live run.

    Raises InputError for damaged files, StoreUnavailable, and UnreadableRecord for records of
    another release.
    """
    now = part_of(folder).number
    found = told_by_events(folder)
    if store is not None:
        lived = told_by_ledger(ledger)
        if lived is not None:
            found[now] = lived
        elif now not in found:
            found[now] = told_by_decisions(folder, store, number=now)
    for number, kept in {**parts_before(folder), now: folder}.items():
        if number not in found and kept.decisions.exists():
            found[number] = told_by_decisions(folder, saved_store(kept), number=number)
    return [found[number] for number in sorted(found)]


def told_by_ledger(ledger: Iterable[LedgerRecord]) -> Told | None:
    """From the ledger; None where it has lost changes, which are numbered."""
    told = Told(source=LEDGER)
    changes: dict[int, DutyChange] = {}
    for record in ledger:
        if isinstance(record, DutyChange):
            changes[record.number] = record
        elif isinstance(record, Work):
            told.work.append(record)
    if not changes or max(changes) + 1 != len(changes):
        return None
    told.changes = [changes[number] for number in sorted(changes)]
    return told


def told_by_events(folder: RunFolder) -> dict[int, Told]:
    """Part of the run -> what its launchers wrote into their events."""
    found: dict[int, Told] = {}
    path = folder.events / "launcher.jsonl"
    for event in read_events(path) if path.exists() else ():
        if event.kind not in (DUTY, WORK):
            continue
        body = dict(event.data)
        told = found.setdefault(int(body.pop(PART, 1)), Told(source=EVENTS))
        record = record_of(body)
        if isinstance(record, DutyChange):
            told.changes.append(record)
        elif isinstance(record, Work):
            told.work.append(record)
    return {number: told for number, told in found.items() if told.changes}


def told_by_decisions(folder: RunFolder, store: Store, *, number: int) -> Told:
    """The duties, recomputed from the decision log of part `number`, without work."""
    roster = Roster()
    for metric in read_metrics(folder.metrics):
        if metric.at_s is not None:
            roster.stepped(metric.step + 1, metric.at_s)
    for record in map(Hearing().metric, all_records(store, "metrics")):
        if record is not None and record.get("kind") == "step":
            roster.stepped(int(record["step"]) + 1, float(record["t_s"]))
    follower = Follower()
    decisions = follower.catch_up(store)
    first = follower.first
    if first is None:
        raise UnreadableRecord(f"the decision log of run {folder.id} is empty")
    before = first.state
    if number > 1:
        roster.resumed(max((c.step for c in before.checkpoints), default=0), first.at_s)
    for decision in decisions:
        roster.decided(before, decision.state, decision.event, decision.now_s)
        before = decision.state
    return Told(source=DECISIONS, changes=list(roster.changes()))
