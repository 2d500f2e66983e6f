"""The launcher's own records of a run: `metrics.jsonl`, `samples.jsonl`, `events/launcher.jsonl`.

Rule: each step and each decision is in them once, however many launchers a run has had. A later
launcher reads what is there (`read_booked`) and writes the rest. Each part of a run counts its
decisions from 0, so records of the second and later parts name their part. While the disk is full,
records wait in memory.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo.coord.attested import FILE, body_of
from bamboo.core.state import Attestation
from bamboo.errors import BooksUnwritable
from bamboo.jsonl import WaitingWriter, drop_torn_line
from bamboo.runs.progress import Progress
from bamboo.runs.run_folder import RunFolder, write_json
from bamboo.telemetry.records import (
    EvaluationRecord,
    EventRecord,
    MetricRecord,
    read_evaluations,
    read_events,
    read_metrics,
)
from bamboo.telemetry.samples import SamplesRecord

PREEMPTION_ORDERED = "PreemptionOrdered"
"""The event written before the launcher asks for a listed preemption."""
SEAT_TAKEN = "SeatTaken"
"""The event written when an instance takes a seat of the trace."""
SEAT_LOST = "SeatLost"
"""The event written before an instance is preempted because the trace has lost its seat."""
DUTY, WORK = "Duty", "Work"
"""The events that say what an instance is there for and how busy it was, as in the ledger."""
RESIZED, SIZE_KEPT = "Resized", "SizeKept"
"""The events that say how many nodes the autoscaler wants from now on, and that it is content."""
FINISHED = "NodeFinished"
"""The decision that a member has written its part of the final state."""
TRIED = "Tried"
"""Strategies that a search has tried: {trials, excess_s, why}; `excess_s` is what they took longer
than the best one that was known."""
DENSITY = "Density"
"""How dense the gradients of a step were: {of_step, density: {parameter: share of rows}}, of those
below 1."""
PART = "part"
"""The field of an event that says which part of the run it is of; absent in the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """An instance has taken a seat, which the trace had lost `lost_before` times by then."""

    seat: int
    lost_before: int
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """What the books contain."""

    version: int = -1
    """The newest decision of this part of the run."""
    losses: frozenset[tuple[int, str]] = frozenset()
    """(step, counted from 0; the bits of its loss)."""
    evaluated: frozenset[tuple[int, str]] = frozenset()
    """The same of evaluations."""
    ordered: frozenset[int] = frozenset()
    """Indices of the listed preemptions that were ordered."""
    seated: tuple[Seated, ...] = ()
    """Which instance has taken which seat of the trace."""
    lost: frozenset[str] = frozenset()
    """Instances whose seat the trace has lost."""
    part: int = 1
    """The part of the run that decisions and duties belong to."""
    duties: int = 0
    """How many changes of duties this part has written."""
    crossed_bytes: int = 0
    """Bytes of replicas that crossed a zone border, in all parts."""
    finished: bool = False
    """Whether the part before ended in order, so that its members wrote their final state."""
    reached: tuple[tuple[int, float], ...] = ()
    """(steps finished, Unix time), where the time was noted."""
    scaling: Mapping[str, Any] | None = None
    """What the autoscaler last wrote down of what it knew; None where it never did."""
    scaled_at_s: float = 0.0
    scaling_part: int = 1
    """The part of the run in which it wrote that."""


def read_booked(folder: RunFolder, *, part: int = 1) -> Booked:
    """What earlier launchers wrote, for a launcher of this part. Call it before the books are
    opened, and only as the launcher, because it cuts off a line whose writer died. Raises
    InputError for a file that is damaged in another way."""
    events = _events(folder)
    for path in (folder.metrics, events):
        drop_torn_line(path)
    records = list(read_events(events))
    data = [(record.kind, record.data) for record in records]
    scaled = [record for record in records if record.kind in (RESIZED, SIZE_KEPT)]
    metrics = read_metrics(folder.metrics)
    return Booked(
        version=max((int(d["version"]) for _, d in data if _decided_in(d, part)), default=-1),
        losses=frozenset((m.step, m.loss.hex()) for m in metrics),
        evaluated=frozenset((e.step, e.loss.hex()) for e in read_evaluations(folder.metrics)),
        ordered=frozenset(int(d["listed"]) for kind, d in data if kind == PREEMPTION_ORDERED),
        seated=tuple(
            Seated(
                seat=int(d["seat"]),
                lost_before=int(d["lost_before"]),
                instance=str(d["instance"]),
            )
            for kind, d in data
            if kind == SEAT_TAKEN
        ),
        lost=frozenset(str(d["instance"]) for kind, d in data if kind == SEAT_LOST),
        part=part,
        duties=max(
            (int(d["number"]) + 1 for kind, d in data if kind == DUTY and _is_of(d, part)),
            default=0,
        ),
        finished=any(k == FINISHED and _is_of(d, part - 1) for k, d in data),
        crossed_bytes=_crossed_bytes(data),
        reached=tuple((m.step + 1, m.at_s) for m in metrics if m.at_s is not None),
        scaling=scaled[-1].data["scaling"] if scaled else None,
        scaled_at_s=scaled[-1].t_s if scaled else 0.0,
        scaling_part=int(scaled[-1].data.get(PART, 1)) if scaled else 1,
    )


class FileBooks:
    """Writes into a run's folder, for one part of the run. Close it at the end."""

    def __init__(
        self, folder: RunFolder, *, part: int = 1, note: Callable[[str], None] = lambda text: None
    ) -> None:
        """`note` is called when a file can no longer be written, and again when everything was
        written. Raises BooksUnwritable where a file cannot be opened."""
        self._part = part
        self._note = note
        self._numerics = folder.path / FILE
        self._has_attested = False
        self._metrics = self._opened(folder.metrics)
        self._samples = self._opened(folder.samples)
        self._events = self._opened(_events(folder))

    def _opened(self, path: Path) -> WaitingWriter:
        return WaitingWriter(
            path, troubled=lambda why: self._note(why or f"{path} is written again")
        )

    def metric(self, record: MetricRecord) -> None:
        self._metrics.write(record.to_json())

    def evaluation(self, record: EvaluationRecord) -> None:
        self._metrics.write(record.to_json())

    def samples(self, record: SamplesRecord) -> None:
        self._samples.write(record.to_json())

    def attested(self, attested: Attestation) -> None:
        """Write what the run computes with, once. A full disk leaves it to the next decision."""
        if self._has_attested or not attested.node:
            return
        with suppress(BooksUnwritable):
            if not self._numerics.exists():
                write_json(self._numerics, body_of(attested))
            self._has_attested = True

    def event(self, kind: str, progress: Progress, *, at_s: float, data: Mapping[str, Any]) -> None:
        """Write event `kind` at `at_s`, with the progress's generation and step, and with the part
        of the run unless it is the first."""
        record = EventRecord(
            t_s=at_s,
            run=progress.run,
            generation=progress.state.generation,
            node="launcher",
            kind=kind,
            step=progress.step,
            data=data if self._part == 1 else {**data, PART: self._part},
        )
        self._events.write(record.to_json())

    def close(self) -> None:
        """Raises BooksUnwritable when something was never written. The next launcher of the run
        writes it again, from the store."""
        with ExitStack() as stack:
            for writer in (self._metrics, self._samples, self._events):
                stack.callback(writer.close)


def _decided_in(data: Mapping[str, Any], part: int) -> bool:
    """Whether this is a decision of that part of the run."""
    return "version" in data and _is_of(data, part)


def _crossed_bytes(data: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
    """Count each change once by its number, even where it was written again."""
    duties = [d for kind, d in data if kind == DUTY]
    return sum(
        {
            (int(d.get(PART, 1)), int(d["number"])): int(d.get("crossed_bytes", 0)) for d in duties
        }.values()
    )


def _is_of(data: Mapping[str, Any], part: int) -> bool:
    return int(data.get(PART, 1)) == part


def _events(folder: RunFolder) -> Path:
    return folder.events / "launcher.jsonl"
