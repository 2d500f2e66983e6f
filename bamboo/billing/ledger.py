"""What the launcher writes into the run's ledger: prices as they begin and end, duties and work of
the instances, throughput, value.

    decisions, steps, leases  ->  Accounts  ->  records, each once  ->  the ledger and the books

Rule: the ledger may be lost with its store, the books cannot be. Duties and work are in both, in
the same form, and `bamboo.billing.run_cost` reads either.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from bamboo.billing.busy import busy_of, busy_to_the_end
from bamboo.billing.money import Rented, bill
from bamboo.coord.codec import (
    STREAM,
    Begin,
    LedgerRecord,
    PriceRecord,
    ThroughputRecord,
    ValueRecord,
    append_record,
    record_body,
)
from bamboo.coord.follow import Decision, all_records
from bamboo.core.events import StoreRefilled
from bamboo.core.state import State
from bamboo.ids import InstanceId, ZoneId
from bamboo.planner.attribution import Work
from bamboo.planner.duties import DutyChange, Roster
from bamboo.planner.fleet.autoscale import Resize
from bamboo.ports import Store
from bamboo.runs.books import DUTY, WORK, Booked
from bamboo.runs.ports import Books
from bamboo.runs.progress import Progress
from bamboo.runs.store_records import Hearing
from bamboo.value import per_usd_spent

WORK_EVERY_S = 60.0
"""Seconds between two notes of how busy the instances were, while nothing else happens."""
AFTER_CHANGE_S = 5.0
"""The shortest time between two such notes while duties change."""


class Accounts:
    """The ledger entries of one part of a run, and which of them are written where."""

    def __init__(self, booked: Booked, books: Books) -> None:
        self._books = books
        self._roster = Roster()
        for steps, at_s in booked.reached:
            self._roster.stepped(steps, at_s)
        self.crossed_bytes = booked.crossed_bytes
        """Bytes of replicas that crossed a zone border, as far as the books have them."""
        newest = max((steps for steps, _ in booked.reached), default=0)
        self._finished_at = newest if booked.finished else None
        """The step after which the part before ended in order; None: it did not."""
        self._part = booked.part
        self._in_books = booked.duties
        self._in_ledger = 0
        self._prices: dict[InstanceId, bool] = {}
        """Instance -> whether the end of its price is in the ledger."""
        self._busy: dict[InstanceId, tuple[Work, ...]] = {}
        self._noted: dict[InstanceId, tuple[Work, ...]] = {}
        """The last work that each instance reported, and the last that was noted."""
        self._noted_at_s = 0.0
        self._to_ledger: list[Work | Resize] = []
        self._resizes: list[Resize] = []
        self._last: State | None = None

    def read(self, store: Store, hearing: Hearing) -> None:
        """Read what earlier launchers wrote into the ledger. Raises StoreUnavailable."""
        records = [hearing.ledger(text) for text in all_records(store, STREAM)]
        prices = [r for r in records if isinstance(r, PriceRecord)]
        self._prices = {r.instance: r.until_s is not None for r in prices}
        self._in_ledger = sum(isinstance(r, DutyChange) for r in records)

    def decided(self, decision: Decision, *, first: Begin | None) -> None:
        """Take in a decision. `first` is the beginning of the log."""
        before = self._last
        if before is None or before.version + 1 != decision.version:
            assert first is not None, "a decision was read, so the beginning was"
            before = first.state
            if before.version:  # a log that was refilled begins in the middle
                self._in_books = 0
            elif self._part > 1:
                step = max((c.step for c in before.checkpoints), default=0)
                whole = self._finished_at is not None and step >= self._finished_at
                self._roster.resumed(step, first.at_s, whole=whole)
        if isinstance(decision.event, StoreRefilled):
            # The store has lost these records, so prices, duties and work are written again.
            self._prices = {}
            self._in_ledger = 0
            self._to_ledger = [*self._resizes, *chain.from_iterable(self._noted.values())]
        self._roster.decided(before, decision.state, decision.event, decision.now_s)
        self._last = decision.state

    def measured(self, record: Mapping[str, Any], *, now_s: float) -> None:
        """Take in a record of the metrics stream."""
        if record.get("kind") == "step":
            self._roster.stepped(int(record["step"]) + 1, float(record["t_s"]))
        elif work := busy_to_the_end(record, at_s=now_s):
            self._busy[work[0].instance] = work

    def told(self, node: str, beat: Mapping[str, Any], *, at_s: float) -> None:
        """Take in a lease of `node`."""
        work = busy_of(node, beat, at_s=at_s)
        if work is not None and not any(said.exact for said in self._busy.get(work.instance, ())):
            self._busy[work.instance] = (work,)

    def resized(self, resize: Resize) -> None:
        """Take in a new number of nodes. It is in the books already."""
        self._resizes.append(resize)
        self._to_ledger.append(resize)

    def book(self, progress: Progress, *, last: bool = False) -> None:
        """Write duties and work that are due into the books; with `last` everything is due."""
        changes = self._roster.changes(after=self._in_books)
        for change in changes:
            self.crossed_bytes += change.crossed_bytes
            self._books.event(DUTY, progress, at_s=change.at_s, data=record_body(change))
        self._in_books = len(self._roster)
        for work in self._work_due(progress.now_s, changed=bool(changes), last=last):
            self._books.event(WORK, progress, at_s=work.at_s, data=record_body(work))
            self._to_ledger.append(work)

    def write(
        self, store: Store, progress: Progress, rented: Sequence[Rented], *, samples_per_step: int
    ) -> None:
        """Write what is due into the ledger. Raises StoreUnavailable; the rest stays due."""
        for change in self._roster.changes(after=self._in_ledger):
            append_record(store, change)
            self._in_ledger = change.number + 1
        while self._to_ledger:
            append_record(store, self._to_ledger[0])
            del self._to_ledger[0]
        for record in ledger_records(
            progress, rented, self._prices, samples_per_step=samples_per_step
        ):
            append_record(store, record)
            if isinstance(record, PriceRecord):
                self._prices[record.instance] = record.until_s is not None

    def _work_due(self, now_s: float, *, changed: bool, last: bool) -> Iterator[Work]:
        """The work of every instance that has worked since its last note."""
        if not last and now_s - self._noted_at_s < (AFTER_CHANGE_S if changed else WORK_EVERY_S):
            return
        self._noted_at_s = now_s
        for instance, work in self._busy.items():
            if self._noted.get(instance) != work:
                self._noted[instance] = work
                yield from work


def ledger_records(
    progress: Progress,
    rented: Sequence[Rented],
    written: Mapping[InstanceId, bool],
    *,
    samples_per_step: int,
) -> Iterator[LedgerRecord]:
    """Prices, throughput and value that are due now. `written`: instance -> whether the end of its
    price is in the ledger."""
    for item in rented:
        instance = InstanceId(item.instance)
        if instance not in written or (item.ended_at_s is not None and not written[instance]):
            yield PriceRecord(
                at_s=item.started_at_s,
                instance=instance,
                instance_type=item.instance_type,
                zone=ZoneId(item.zone),
                market=item.market,
                usd_per_hour=item.usd_per_hour,
                on_demand_usd_per_hour=item.on_demand_usd_per_hour,
                until_s=item.ended_at_s,
                interrupted=item.interrupted,
            )
    samples = progress.steps_done * samples_per_step
    yield ThroughputRecord(
        at_s=progress.now_s,
        step=progress.steps_done,
        samples=samples,
        tokens=progress.tokens,
        samples_per_s=progress.samples_per_s,
    )
    on_demand = bill(rented, now_s=progress.now_s, modelled=True).on_demand_usd
    yield ValueRecord(
        at_s=progress.now_s,
        step=progress.steps_done,
        usd=progress.usd,
        on_demand_usd=on_demand,
        samples_per_usd=per_usd_spent(samples, progress.usd),
        tokens_per_usd=progress.tokens_per_usd,
    )
