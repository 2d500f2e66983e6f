"""Reads `cloud.jsonl`, the log of starts and ends of instances that a run's bill is made from.

Rule: a final record is made only from a whole log; a damaged log is an error that names it and says
what to do. The launcher of a running run goes on with the readable lines and says so, since ending
the run would not repair the log.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bamboo.billing.money import Rented, rented_from_journal
from bamboo.errors import InputError
from bamboo.telemetry.reader import Tail

_DAMAGE = (KeyError, TypeError, ValueError, OverflowError, RecursionError)
_SHOWN = 60
"""Characters of a line that an error shows to identify it."""


def read_bill_log(path: Path) -> list[Mapping[str, Any]]:
    """All records; none where the file does not exist. Raises InputError for a damaged line."""
    try:
        return [_record(line) for line in Tail(path).lines()]
    except _DAMAGE as error:
        raise _damaged(path, error) from error


def rented_in(
    path: Path, *, on_demand_usd_per_hour: Mapping[str, float], free_first_hour: bool
) -> list[Rented]:
    """The instances of a whole log, in the order of their start. Raises InputError where the log is
    damaged or its records contradict each other."""
    records = read_bill_log(path)
    try:
        return rented_from_journal(
            records,
            on_demand_usd_per_hour=on_demand_usd_per_hour,
            free_first_hour=free_first_hour,
        )
    except _DAMAGE as error:
        raise _damaged(path, error) from error


class BillLog:
    """The log of a running run. `note` is called once for each unreadable line and for each
    instance that is left out."""

    def __init__(
        self,
        path: Path,
        *,
        on_demand_usd_per_hour: Mapping[str, float],
        free_first_hour: bool,
        note: Callable[[str], None],
    ) -> None:
        self._path = path
        self._tail = Tail(path)
        self._prices = on_demand_usd_per_hour
        self._note = note
        self._free_first_hour = free_first_hour
        self._records: dict[str, list[Mapping[str, Any]]] = {}
        self._noted: set[str] = set()

    def rented(self) -> Sequence[Rented]:
        """All instances that can be read, in the order of their start."""
        for line in self._tail.lines():
            try:
                record = _record(line)
                self._records.setdefault(str(record["instance"]), []).append(record)
            except _DAMAGE as error:
                self._say(error)
        found: list[Rented] = []
        for records in self._records.values():
            try:
                found += rented_from_journal(
                    records,
                    on_demand_usd_per_hour=self._prices,
                    free_first_hour=self._free_first_hour,
                )
            except _DAMAGE as error:
                self._say(error)
        return found

    def _say(self, error: Exception) -> None:
        text = str(_damaged(self._path, error))
        if text not in self._noted:
            self._noted.add(text)
            self._note(f"the bill lacks what cannot be read: {text}")


def _record(line: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
        for field in ("instance", "kind"):
            if not isinstance(record[field], str):
                raise ValueError(f"{field!r} is {record[field]!r}")
        float(record["t"])
    except _DAMAGE as error:
        raise ValueError(f"{error} in {line[:_SHOWN]!r}") from error
    else:
        return dict(record)


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path}: a record lacks or garbles {error}; take the original, or take that line out"
    )
