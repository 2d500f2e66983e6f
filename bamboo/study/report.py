"""What is known of a run for its report: while it goes on, after its end, or after it was killed.

    bamboo cost RUN, bamboo status RUN  ->  the figures, as those print them
    metrics.jsonl, cloud.jsonl          ->  the curves
    receipts, or the live run           ->  preemptions and reconfigurations, with their sentences

Rule: no figure is computed here that those do not give. What they cannot give is named in
`missing`, and the report is still made.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from bamboo.billing.money import Rented, bill
from bamboo.billing.receipt import receipt_body
from bamboo.billing.run_cost import NOT_TOLD, cost_of_run, rented_of
from bamboo.config.tree import JobConfig
from bamboo.errors import BambooError, InputError
from bamboo.runs.live import live_store
from bamboo.runs.reconfigured import reconfigured_line
from bamboo.runs.run_folder import RunFolder, job_of, parts_before, started_at_s
from bamboo.runs.run_status import LOST, progress_from_store, status_of
from bamboo.telemetry.records import EvaluationRecord, MetricRecord, read_evaluations, read_metrics

STATUS = ("phase", "outcome", "sentence", "step", "steps", "loss")
PREEMPTION = ("planned", "recomputed", "line")
"""What the page needs of a status, and of each preemption in a receipt."""
POINTS = 240
FEWEST = 60
BILLED = 120_000
"""The bill is computed at POINTS moments for its curve. With many instances there are fewer
moments, so that at most BILLED instances are billed in total, but never fewer than FEWEST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dollars:
    """The bill at a moment, as if the run had ended then."""

    at_s: float
    usd: float
    on_demand_usd: float


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything that the page shows."""

    run: str
    now_s: float
    """When the report was made, in Unix time."""
    started_s: float = 0.0
    job: str = ""
    """What is trained, on what and how, in one line; empty where it is unknown."""
    status: Mapping[str, Any] = field(default_factory=dict)
    """The value of `bamboo status --json`; empty where it is unknown."""
    cost: Mapping[str, Any] = field(default_factory=dict)
    """The value of `bamboo cost RUN --json`; empty where it is unknown."""
    steps: Sequence[MetricRecord] = ()
    evaluations: Sequence[EvaluationRecord] = ()
    tokens_per_sample: int = 1
    """0 where the data are no text."""
    loss_unit: str = "nats per token"
    """`per image` where the loss is the model's own."""
    entropy_nats: float | None = None
    rented: Sequence[Rented] = ()
    dollars: Sequence[Dollars] = ()
    receipts: Sequence[Mapping[str, Any]] = ()
    """Receipts of the parts of the run, in order; the last may be that of a running run. Empty
    where there is none."""
    missing: list[str] = field(default_factory=list)
    """A sentence for each thing that is unknown."""

    @property
    def metrics(self) -> Sequence[str]:
        """The names of what the model measures beside its loss."""
        return list(dict.fromkeys(name for one in self.steps for name in one.metrics))

    @property
    def until_s(self) -> float:
        """Where the curves end."""
        spent = self.cost.get("spent")
        if spent:
            return float(spent["at_s"])
        ended = self.status.get("phase") == "finished" and self.receipts
        ended_s = self.receipts[-1].get("ended_s") if ended else None
        return float(ended_s) if isinstance(ended_s, int | float) else self.now_s


def report_of(folder: RunFolder, *, now_s: float) -> Report:
    """Everything that the run's files and, while it lives, its store say. Does not raise for
    damaged or missing files."""
    report = Report(run=folder.id, now_s=now_s)
    with _noted(report, "the launch"):
        report.started_s = started_at_s(folder)
        job = job_of(folder)
        report.job = job_words(job)
        report.tokens_per_sample = job.tokens_per_sample
        if folder.read_json(folder.resolved).get("unigram_entropy_nats") is None:
            report.loss_unit = f"per {job.counted}"
    with _noted(report, "where it stands"):
        report.status = _with_all(status_of(folder), STATUS)
    with _noted(report, "what it cost"):
        report.cost = cost_of_run(folder, now_s=now_s)
    with _noted(report, "loss and throughput"):
        report.steps = read_metrics(folder.metrics)
        report.evaluations = read_evaluations(folder.metrics)
    with _noted(report, "the instances"):
        report.rented = rented_of(folder, ())
    with _noted(report, "preemptions, failovers and steps done again"):
        report.receipts = [_checked(one) for one in _receipts(folder, report)]
        report.entropy_nats = next(
            (one["unigram_entropy_nats"] for one in reversed(report.receipts)), None
        )
    if not report.cost.get("unspent"):  # otherwise they are from a log that cannot be trusted
        report.dollars = list(_dollars(report.rented, report.until_s))
    report.missing += _lacking(report)
    return report


def job_words(job: JobConfig) -> str:
    """`GPT of 4 blocks, width 256; batch 16 of python-stdlib; 1 x 4, eager redundancy`"""
    model = job.model
    data = job.data
    cluster = job.cluster
    what = f"GPT of {model.layers} blocks, width {model.width}" if model.is_gpt else model.model
    source = PurePath(data.path).name if data.source == "path" else data.source
    source = f"its own {job.unit}s" if job.unit else source
    how = f"{cluster.pipelines} x {cluster.stages}, {cluster.redundancy} redundancy"
    return f"{what}; batch {job.train.batch} of {source}; {how}"


@contextmanager
def _noted(report: Report, what: str) -> Iterator[None]:
    try:
        yield
    except BambooError as error:
        report.missing.append(f"{what}: {error}")


def _with_all(body: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """The same. Raises InputError where its file lacks one of these names."""
    for name in names:
        body[name]
    return body


def _checked(receipt: Mapping[str, Any]) -> Mapping[str, Any]:
    for one in receipt["preemptions"]:
        _with_all(one, PREEMPTION)
    for one in receipt["reconfigurations"]:
        reconfigured_line(one)
    return _with_all(receipt, ("unigram_entropy_nats",))


def _receipts(folder: RunFolder, report: Report) -> list[Mapping[str, Any]]:
    """The receipt of each part; for a running part, what its receipt would be now. Raises
    InputError where the newest part has neither."""
    before = parts_before(folder)
    found: list[Mapping[str, Any]] = [
        part.read_json(part.receipt) for part in before.values() if part.receipt.exists()
    ]
    if lost := len(before) - len(found):
        report.missing.append(f"{lost} of {len(before) + 1} parts of the run left no receipt")
    if folder.receipt.exists():
        return [*found, folder.read_json(folder.receipt)]
    try:
        with live_store(folder) as store:
            progress = progress_from_store(folder, store)
    except InputError as error:
        lost = report.status.get("phase") == LOST
        why = "the run was killed and left no receipt" if lost else str(error)
        report.missing.append(f"preemptions, failovers and steps done again: {why}")
        return found
    job = job_of(folder)
    now = receipt_body(
        progress,
        bill(report.rented, now_s=report.until_s, modelled=job.cloud.provider == "local"),
        samples_per_step=job.train.batch,
        unigram_entropy_nats=None,
        final_note="",
    )
    return [*found, now]


def _dollars(rented: Sequence[Rented], until_s: float) -> Iterator[Dollars]:
    """The bill at equal intervals, and wherever an instance began or ended."""
    if not rented:
        return
    first_s = min(item.started_at_s for item in rented)
    points = max(FEWEST, min(POINTS, BILLED // len(rented)))
    marks = {first_s + (until_s - first_s) * n / points for n in range(points + 1)}
    if len(rented) <= POINTS:
        marks |= {item.ended_at_s for item in rented if item.ended_at_s is not None}
    for at_s in sorted(mark for mark in marks if mark < until_s):
        some = [_by(item, at_s) for item in rented if item.started_at_s <= at_s]
        yield _dollars_at(some, at_s)
    yield _dollars_at(rented, until_s)  # at the same time as `bamboo cost`, so with all instances


def _dollars_at(rented: Sequence[Rented], at_s: float) -> Dollars:
    total = bill(rented, now_s=at_s, modelled=True)
    return Dollars(at_s=at_s, usd=total.usd, on_demand_usd=total.on_demand_usd)


def _by(item: Rented, at_s: float) -> Rented:
    """The instance as it was known at that moment."""
    if item.ended_at_s is not None and item.ended_at_s <= at_s:
        return item
    return replace(item, ended_at_s=None, interrupted=False)


def _lacking(report: Report) -> Iterator[str]:
    """What is missing in the records of an earlier release, or of a short run."""
    if not report.steps:
        yield "no step was finished, or nobody wrote it down: there is no loss and no throughput"
    untimed = sum(one.at_s is None for one in report.steps)
    if untimed:
        yield (
            f"{untimed} of {len(report.steps)} steps were recorded without their time, as earlier "
            "releases did: throughput is drawn by steps"
        )
    odd = [one.step for one in report.steps if not _finite(one.loss)]
    if odd:
        yield f"the loss of {len(odd)} steps is no number, first in step {odd[0]}: a gap there"
    skipped = [b.step for a, b in pairwise(report.steps) if b.step > a.step + 1]
    if skipped:
        yield f"steps are missing from the records, first before step {skipped[0]}"
    if not report.rented:
        yield "the cloud's log has no instance: no nodes by zone, no cumulative dollars"
    spent = report.cost.get("spent")
    if report.cost and not spent:
        yield report.cost.get("unspent") or NOT_TOLD
    elif spent and not spent["uses"]:
        yield f"where the money went: {spent['unknown']}"


def _finite(value: float) -> bool:
    return value - value == 0.0
