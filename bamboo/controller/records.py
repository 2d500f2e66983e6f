"""What a launcher knows of its run and keeps of it: progress, books, ledger.

    decisions, metrics, leases  ->  Records  ->  progress, the screen, the books, the ledger

Rule: over all launchers of a run, each decision and each loss of a step is in the books once.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bamboo.billing.ledger import Accounts
from bamboo.config.tree import JobConfig
from bamboo.controller.ports import Ports
from bamboo.controller.spending import Spending
from bamboo.coord.codec import Begin
from bamboo.coord.follow import Decision
from bamboo.core.state import Outcome, Phase
from bamboo.ids import NodeId
from bamboo.ports import Store
from bamboo.runs.books import DENSITY, Booked
from bamboo.runs.pause import with_kill_stamp
from bamboo.runs.progress import Progress, TraceNow, with_beat, with_decision, with_metric
from bamboo.runs.store_records import Hearing
from bamboo.telemetry.records import EVALUATION, EvaluationRecord, MetricRecord
from bamboo.telemetry.samples import SamplesRecord

BEHIND_STEPS = 2
"""Steps by which the record of a stage may come after the loss of a step."""


class Records:
    """The records of one launcher. What earlier launchers of the same run `booked` is not written
    again. Methods that read or write the ledger raise StoreUnavailable."""

    def __init__(
        self,
        *,
        ports: Ports,
        store: Store,
        job: JobConfig,
        progress: Progress,
        booked: Booked,
        spending: Spending,
    ) -> None:
        self._ports = ports
        self._store = store
        self._samples_per_step = job.train.batch
        self.progress = progress
        self._booked = booked
        self._spending = spending
        self.hearing = Hearing(ports.screen.note)
        self.accounts = Accounts(booked, ports.books)
        self.missing = 0
        """How many instances the run lacks and the fleet may rent."""
        self._losses = set(booked.losses)
        self._evaluated = set(booked.evaluated)
        self._steps = {step for step, _ in self._losses}
        self._members: list[tuple[float, int]] = []
        """(Unix time, members since then), for each change; of this part of the run."""

    def decided(self, decision: Decision, *, first: Begin | None) -> None:
        """Take in a decision. `first` is the beginning of the log."""
        ports = self._ports
        self.accounts.decided(decision, first=first)
        self.progress = with_decision(
            self.progress,
            decision.state,
            event=decision.event,
            reason=decision.reason,
            at_s=decision.now_s,
        )
        members = len(decision.state.live_nodes())
        if not self._members or self._members[-1][1] != members:
            self._members.append((decision.now_s, members))
        if decision.state.attested is not None:
            ports.books.attested(decision.state.attested)
        if decision.state.version > self._booked.version:
            ports.screen.decided(self.progress, decision)
            ports.books.event(
                type(decision.event).__name__,
                self.progress,
                at_s=decision.now_s,
                data={"reason": decision.reason, "version": decision.state.version},
            )

    def measured(self, record: Mapping[str, Any], *, now_s: float) -> None:
        """Take in a record of the metrics stream."""
        self.accounts.measured(record, now_s=now_s)
        before = self.progress.step
        if record.get("kind") == "failover":
            record = with_kill_stamp(record, self._ports.fleet.kill_stamps_s())
        self.progress = with_metric(self.progress, record)
        if record.get("kind") == EVALUATION:
            self._book_evaluation(EvaluationRecord.of(record, time="t_s"))
        if record.get("kind") == "density":
            self._book_density(record, before)
        if record.get("kind") != "step":
            return
        step = int(record["step"])
        if "used" in record:
            # Every report is kept, because `verify --samples` compares each record with the data.
            self._ports.books.samples(SamplesRecord.of_step(step, record["used"]))
        if self.progress.step > before:
            self._ports.screen.stepped(self.progress)
        self._book_loss(step, record)

    def _book_loss(self, step: int, record: Mapping[str, Any]) -> None:
        loss = float(record["loss"])
        if (step, loss.hex()) in self._losses:
            return
        repeated = step in self._steps
        self._losses.add((step, loss.hex()))
        self._steps.add(step)
        self.spent()
        text = self.progress.tokens_per_step > 0
        self._ports.books.metric(
            MetricRecord(
                step=step,
                loss=loss,
                usd=self.progress.usd,
                tokens_per_s=self.progress.tokens_per_s if text else None,
                tokens_per_usd=self.progress.tokens_per_usd if text else None,
                samples_per_s=self.progress.samples_per_s,
                samples_per_usd=self.progress.samples_per_usd,
                at_s=float(record["t_s"]),
                count=record.get("count", 0),
                unit=record.get("unit", ""),
                metrics=record.get("metrics", {}),
                nodes=self._members_at(float(record["t_s"])),
            )
        )
        if repeated:
            # It is in the books too, so `verify` finds it.
            self._ports.screen.note(f"step {step} was reported twice, with two losses: a fault")

    def _book_density(self, record: Mapping[str, Any], reached: int) -> None:
        """Write the densities of a step, for `bamboo explain`. A launcher that takes a run over
        reads the stream from its beginning, and what lies steps back is in the books already."""
        sparse = {name: share for name, share in record["density"].items() if share < 1}
        if sparse and record["step"] + BEHIND_STEPS >= reached:
            data = {"of_step": record["step"], "density": sparse}
            self._ports.books.event(DENSITY, self.progress, at_s=self._ports.now(), data=data)

    def _members_at(self, at_s: float) -> int:
        """How many nodes were members at this Unix time, by the decisions read so far."""
        then = bisect_right(self._members, at_s, key=lambda change: change[0])
        return self._members[then - 1][1] if then else 0

    def _book_evaluation(self, record: EvaluationRecord) -> None:
        found = (record.step, record.loss.hex())
        if found in self._evaluated:
            return
        repeated = any(step == record.step for step, _ in self._evaluated)
        self._evaluated.add(found)
        self._ports.books.evaluation(record)
        self._ports.screen.evaluated(self.progress)
        if repeated:
            words = f"the evaluation after step {record.step} was reported twice, with two losses"
            self._ports.screen.note(f"{words}: a fault")

    def told(self, node: NodeId, beat: Mapping[str, Any], *, at_s: float) -> None:
        """Take in a lease of `node`."""
        self.progress = with_beat(self.progress, node, beat)
        self.accounts.told(node, beat, at_s=at_s)

    def spent(self) -> None:
        """Compute what the run would cost if it ended now, with the 60 s minimum of every instance.
        The screen, the ledger, the budget and at the end the receipt use this figure."""
        rented, now_s = self._ports.fleet.rented(), self._ports.now()
        progress = replace(self.progress, crossed_bytes=self.accounts.crossed_bytes)
        self.progress = self._spending.at(progress, rented, missing=self.missing, now_s=now_s)

    def played(self, trace: TraceNow | None) -> None:
        """Take in where the run's trace is now, if it has one."""
        if trace is not None:
            self.progress = replace(self.progress, trace=trace)

    def turned(self, trace: TraceNow | None) -> None:
        """A turn of the loop is over, with the run's trace there."""
        self.progress = replace(self.progress, now_s=self._ports.now())
        self.played(trace)
        self._ports.screen.turned(self.progress)

    def note(self, text: str) -> None:
        """Show a sentence."""
        self._ports.screen.note(text)

    def read_ledger(self) -> None:
        """Read what earlier launchers wrote."""
        self.accounts.read(self._store, self.hearing)

    def to_books(self, *, last: bool = False) -> None:
        """Write duties and work that are due into the books; with `last` everything is due."""
        self.accounts.book(self.progress, last=last)

    def to_ledger(self, *, last: bool = False) -> None:
        """Write what is due into the books and the ledger."""
        rented, samples = self._ports.fleet.rented(), self._samples_per_step
        self.to_books(last=last)
        self.accounts.write(self._store, self.progress, rented, samples_per_step=samples)

    def ended(self, outcome: Outcome, sentence: str) -> None:
        """The launcher ends the run, unless its members did."""
        if self.progress.finished:
            return
        state = replace(
            self.progress.state, phase=Phase.FINISHED, outcome=outcome, sentence=sentence
        )
        self.progress = replace(self.progress, state=state, ending=sentence)
