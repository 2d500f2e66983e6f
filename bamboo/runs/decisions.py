"""A run's decision log: saved with its other files at the end, and recomputed on demand.

`decisions.jsonl` holds one `{version, body}` a decision, as the store had it, and a last line
`{state}` with the final state document. Verification reads the store of a live run, and otherwise
this file.
"""

import json
from typing import Any

from bamboo.coord.memory_store import MemoryStore
from bamboo.coord.replay import DecisionReport, verify_decisions
from bamboo.errors import InputError, UnreadableRecord
from bamboo.ports import Entry, Store
from bamboo.runs.live import live_store
from bamboo.runs.run_folder import RunFolder, part_of, parts_before, write_file


def save_decisions(folder: RunFolder, store: Store) -> int:
    """Copy the whole log into the run's folder. Returns the number of entries. Raises
    StoreUnavailable."""
    lines = []
    version = -1
    while entries := store.entries(after_version=version, timeout_s=0.0):
        lines += [json.dumps({"version": e.version, "body": e.body}) for e in entries]
        version = entries[-1].version
    lines.append(json.dumps({"state": store.read().state}))
    write_file(folder.decisions, "\n".join(lines) + "\n")
    return len(lines) - 1


def check_decisions(folder: RunFolder) -> dict[str, Any]:
    """Recompute every decision of a run, part by part. Returns the value of `bamboo verify
    --decisions --json`. A part whose cloud was killed saved no log; `unsaved_parts` names it.

    Raises InputError when the newest part has neither a live store nor a saved log, or when no part
    has a decision: then nothing was compared, and the run must not be called equal.
    """
    before = {n: part for n, part in parts_before(folder).items() if part.decisions.exists()}
    reports = {n: _of_saved(part) for n, part in before.items()}
    newest = part_of(folder).number
    reports[newest] = _of_newest(folder)
    equal = all(report.equal for report in reports.values())
    decisions = sum(report.decisions for report in reports.values())
    if equal and not decisions:
        raise InputError(
            f"run {folder.id} has made no decision"
            + (" before it ended" if folder.receipt.exists() else " so far")
            + ": there is nothing to recompute; take a run whose nodes have joined"
        )
    return {
        "run": folder.id,
        "equal": equal,
        "decisions": decisions,
        "parts": [
            {"part": n, "decisions": report.decisions, "first_version": report.first_version}
            for n, report in reports.items()
        ],
        "unsaved_parts": [n for n in range(1, newest) if n not in reports],
        "first_difference": next(
            (
                report.first_difference if newest == 1 else f"part {n}: {report.first_difference}"
                for n, report in reports.items()
                if not report.equal
            ),
            None,
        ),
    }


def _of_newest(folder: RunFolder) -> DecisionReport:
    if folder.decisions.exists():
        return _of_saved(folder)
    if folder.receipt.exists():
        raise InputError(
            f"run {folder.id} has ended and {folder.decisions} is missing: it was taken away, in "
            "which case put it back, or the run ended before it had a log to save"
        )
    with live_store(folder) as store:
        return verify_decisions(store)


def _of_saved(folder: RunFolder) -> DecisionReport:
    try:
        return verify_decisions(saved_store(folder))
    except UnreadableRecord as error:  # of another release
        raise InputError(f"{folder.decisions}: {error}") from error


def saved_store(folder: RunFolder) -> MemoryStore:
    """The saved log as a store. Raises InputError when the file is damaged."""
    entries: list[Entry] = []
    state = ""
    for number, line in enumerate(folder.read_text(folder.decisions).splitlines(), start=1):
        try:
            record = json.loads(line)
            if "state" in record:
                state = str(record["state"])
            else:
                entries.append(Entry(version=int(record["version"]), body=str(record["body"])))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(
                f"{folder.decisions}: line {number} is damaged ({error}); take the original"
            ) from error
    if not entries or not state:
        raise InputError(f"{folder.decisions} is cut short; take the original")
    store = MemoryStore(folder.id)
    store.refill(state=state, entries=entries, documents={})
    return store
