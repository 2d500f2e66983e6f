"""Prints the table of a check line by line, and keeps each figure at once.

Rule: a line that fails does not end the part: `attempt` says its reason in the table. What is
printed is in the file already, so a part that is killed loses only the line that it was at.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.children import ChildFailed, Deadline
from benchmarks.gpu_check.figures import Figure, Value, merged, records_of, with_record

FAILURES = (ChildFailed, OSError, KeyError, ValueError, IndexError)
"""What a line may raise: a process that failed, or an answer of another form than expected."""


class Board:
    """The table of one part, and the file that its figures are merged into."""

    def __init__(self, part: str, file: Path, facts: Mapping[str, Any], deadline: Deadline) -> None:
        self.part, self.deadline = part, deadline
        self._file, self._facts = file, facts
        self.figures: list[Figure] = []
        self.card = str(facts.get("uuid") or facts["card"])
        """The UUID of the card, or what stands in its place."""
        self._said_s = time.monotonic()

    def add(self, name: str, value: Value, unit: str = "", *, limit: str = "") -> None:
        """A figure that was measured."""
        self._keep(Figure(part=self.part, name=name, value=value, unit=unit, limit=limit))

    def not_run(self, name: str, why: str, *, limit: str = "") -> None:
        """A figure that could not be measured."""
        line = " ".join(why.split())
        self._keep(Figure(part=self.part, name=name, limit=limit, why_not=line))

    def record(self, kind: str, name: str, body: Mapping[str, Any]) -> None:
        """Keep more than a figure: a digest, a profile."""
        record = {**self._facts, **body}
        self._write(with_record(self._file.read_text(), kind, name, record))

    def attempt(
        self, name: str, work: Callable[[], None], *, needs_s: float = 0.0, limit: str = ""
    ) -> None:
        """Do work that adds the figure `name`, perhaps with others. When it fails, or less than
        `needs_s` of the part is left, that figure is not run, and the table says why."""
        left_s = self.deadline.left_s()
        if left_s < needs_s:
            self.not_run(
                name, f"{left_s:.0f} s were left, and about {needs_s:.0f} s are needed", limit=limit
            )
            return
        try:
            work()
        except FAILURES as error:
            known = isinstance(error, ChildFailed)
            said = str(error) if known else f"{type(error).__name__}: {error}"
            self.not_run(name, said, limit=limit)

    def records(self, kind: str) -> dict[str, dict[str, Any]]:
        """What was kept by `record`, by name, now or before, of the same card and commit."""
        return records_of(self._file.read_text() if self._file.exists() else "", kind, self._facts)

    def kept(self) -> list[str]:
        """The text of this file of results, and of those beside it."""
        return [path.read_text() for path in sorted(self._file.parent.glob("*.json"))]

    def _keep(self, figure: Figure) -> None:
        now_s = time.monotonic()
        print(f"{figure.line()}  ({now_s - self._said_s:.0f} s)", flush=True)
        self._said_s = now_s
        self.figures.append(figure)
        old = self._file.read_text() if self._file.exists() else ""
        self._write(merged(old, figure, self._facts))

    def _write(self, text: str) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        aside = self._file.with_suffix(".tmp")
        aside.write_text(text)
        aside.replace(self._file)

    @property
    def left_out(self) -> int:
        """How many lines were not run."""
        return sum(figure.value is None for figure in self.figures)

    @property
    def missed(self) -> int:
        """How many figures are outside of their limit."""
        return sum(figure.reached is False for figure in self.figures)
