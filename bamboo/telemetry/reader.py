"""Reads JSON-lines files that may still be growing; a torn last line is not a line yet."""

from collections.abc import Iterator
from pathlib import Path

from bamboo.errors import InputError
from bamboo.telemetry.schema import EventRecord, MetricRecord


class Tail:
    """Reads what was appended since the last look; a file that is not there yet is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[str]:
        """The complete, non-empty lines that came since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self._offset += end
        text = data[:end].decode("utf-8", errors="replace")
        return [line for line in text.splitlines() if line.strip()]


def read_events(path: Path) -> Iterator[EventRecord]:
    """All whole events of a file; a line torn by a kill is skipped, later ones are read."""
    for line in Tail(path).lines():
        try:
            yield EventRecord.from_json(line)
        except InputError:
            if line.rstrip().endswith("}"):
                raise


def read_metrics(path: Path) -> list[MetricRecord]:
    """All metrics of a run, in step order. Raises InputError on a record it cannot read."""
    return sorted(map(MetricRecord.from_json, Tail(path).lines()), key=lambda m: m.step)
