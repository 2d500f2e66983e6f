"""What shows a run while it is led, and what keeps its records, as Protocols."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bamboo.coord.follow import Decision
from bamboo.core.state import Attestation
from bamboo.runs.progress import Progress
from bamboo.telemetry.records import EvaluationRecord, MetricRecord
from bamboo.telemetry.samples import SamplesRecord


class Screen(Protocol):
    """Where progress is shown; it never blocks."""

    def decided(self, progress: Progress, decision: Decision) -> None: ...

    def stepped(self, progress: Progress) -> None: ...

    def evaluated(self, progress: Progress) -> None: ...

    def turned(self, progress: Progress) -> None: ...

    def note(self, text: str) -> None: ...

    def detail(self, text: str) -> None:
        """A line that is shown only where every detail was asked for."""


@dataclass(frozen=True, slots=True)
class NoteScreen:
    """A screen that shows notes alone."""

    note: Callable[[str], None]

    def decided(self, progress: Progress, decision: Decision) -> None:
        """Nothing is shown of a decision."""

    def stepped(self, progress: Progress) -> None:
        """Nothing is shown of a step."""

    def evaluated(self, progress: Progress) -> None:
        """Nothing is shown of an evaluation."""

    def turned(self, progress: Progress) -> None:
        """Nothing is shown of a turn."""

    def detail(self, text: str) -> None:
        """Nothing is shown of details."""


class Books(Protocol):
    """Where records are kept while the run goes on."""

    def metric(self, record: MetricRecord) -> None: ...

    def evaluation(self, record: EvaluationRecord) -> None: ...

    def samples(self, record: SamplesRecord) -> None: ...

    def attested(self, attested: Attestation) -> None:
        """Keep what the run computes with; at each decision, so that it is kept once it can be."""

    def event(
        self, kind: str, progress: Progress, *, at_s: float, data: Mapping[str, Any]
    ) -> None: ...
