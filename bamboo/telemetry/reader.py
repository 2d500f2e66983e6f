"""Reads JSON-lines files that may still be growing; a torn last line does not count yet."""

from collections.abc import Iterator
from pathlib import Path

from bamboo.errors import InputError
from bamboo.named_files import open_named
from bamboo.telemetry.schema import EventRecord, MetricRecord


class Tail:
    """Reads what was appended since the last look; a missing file counts as empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[str]:
        """The complete, non-empty lines that came since the last call. Raises InputError for a file
        that exists and cannot be read."""
        try:
            with open_named(self._path) as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(
                f"{self._path} cannot be read: {error.strerror}; put the original back, or take "
                "away what is in its place"
            ) from error
        end = data.rfind(b"\n") + 1
        self._offset += end
        text = data[:end].decode("utf-8", errors="replace")
        return [line for line in text.splitlines() if line.strip()]


def read_events(path: Path) -> Iterator[EventRecord]:
    """All whole events of a file; a line torn by a kill is skipped, later ones are read."""
    for line in Tail(path).lines():
        try:
            yield EventRecord.from_json(line)
        except InputError as error:
            if line.rstrip().endswith("}"):
                raise InputError(f"{path}: {error}") from error


def read_metrics(path: Path) -> list[MetricRecord]:
    """All metrics of a run, in step order. Raises InputError on a record it cannot read."""
    lines = Tail(path).lines()
    try:
        return sorted(map(MetricRecord.from_json, lines), key=lambda m: m.step)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
