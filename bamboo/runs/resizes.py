"""The resizes that a run has had, each with its sentence.

Rule: the books have all of them, from every part of the run. Where they are missing, the ledger of
a live run is read.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from bamboo.coord.ledger import LedgerRecord
from bamboo.planner.fleet.autoscale import Resize
from bamboo.runs.books import RESIZED
from bamboo.runs.run_folder import RunFolder
from bamboo.telemetry.reader import read_events


def resizes_of(folder: RunFolder, ledger: Iterable[LedgerRecord] = ()) -> list[dict[str, Any]]:
    """The value of `resizes` in `bamboo cost RUN --json`, oldest first. Raises InputError for a
    damaged file."""
    path = folder.events / "launcher.jsonl"
    booked = [
        dict(record.data["resize"])
        for record in (read_events(path) if path.exists() else ())
        if record.kind == RESIZED
    ]
    return booked or [asdict(record) for record in ledger if isinstance(record, Resize)]
