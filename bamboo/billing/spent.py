"""Where every instance-second and micro-dollar of a run went: live, or after its end.

    the cloud's log of starts and stops            ->  the bill
    duties and work of the instances (`bamboo.billing.duty_sources`)  ->  its parts

Rule: the bill does not depend on what an instance did, and the parts do not depend on the bill.
They are equal to the micro-dollar, or `planner.attribution` refuses them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from bamboo.billing.bill_log import rented_in
from bamboo.billing.duty_sources import Told, told_of
from bamboo.billing.money import Rented
from bamboo.billing.overheads import beside_body, beside_of
from bamboo.config.tree import JobConfig
from bamboo.coord.follow import all_records
from bamboo.coord.ledger import STREAM, LedgerRecord, PriceRecord, decode_record
from bamboo.errors import CoreMisuse, UnreadableRecord
from bamboo.ids import InstanceId
from bamboo.planner.attribution import Spent, Tenure, Use, attribute
from bamboo.planner.duties import Duty, DutyChange, last_duties
from bamboo.planner.prices.auxiliary import AuxiliaryPrice
from bamboo.planner.value import MICRO, bill_micro_usd
from bamboo.ports import Store
from bamboo.runs.run_folder import RunFolder, part_of
from bamboo.runs.run_status import catalogue_of, job_of

WAITING = (Use.BOOTING, Use.FORMING, Use.PARKED)
NOT_MEMBERS = (Duty.BOOTING, Duty.LEAVING)


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
    on_demand = catalogue_of(folder).on_demand_prices()
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


# ------------------------------------------------------------------------------ the parts


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


# ------------------------------------------------------------------------------ rates


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
