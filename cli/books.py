"""The launcher's own records of a run: `metrics.jsonl`, `samples.jsonl`, its part of `events/`."""

from collections.abc import Mapping
from typing import Any

from bamboo.telemetry.samples import SamplesRecord
from bamboo.telemetry.schema import EventRecord, MetricRecord
from bamboo.telemetry.writer import LineWriter
from cli.progress import Progress
from cli.runs import RunFolder


class FileBooks:
    """Writes into a run's folder; close it at the end."""

    def __init__(self, folder: RunFolder) -> None:
        self._metrics = LineWriter(folder.metrics)
        self._samples = LineWriter(folder.samples)
        self._events = LineWriter(folder.events / "launcher.jsonl")

    def metric(self, record: MetricRecord) -> None:
        self._metrics.write(record.to_json())

    def samples(self, record: SamplesRecord) -> None:
        self._samples.write(record.to_json())

    def event(self, kind: str, progress: Progress, *, at_s: float, data: Mapping[str, Any]) -> None:
        """`kind` at `at_s`, with the progress's generation and step."""
        record = EventRecord(
            t_s=at_s,
            run=progress.run,
            generation=progress.state.generation,
            node="launcher",
            kind=kind,
            step=progress.step,
            data=data,
        )
        self._events.write(record.to_json())

    def close(self) -> None:
        self._metrics.close()
        self._samples.close()
        self._events.close()
