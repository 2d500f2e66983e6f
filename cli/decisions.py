"""A run's decision log: saved beside its other files at the end, and recomputed on demand.

`decisions.jsonl` holds one `{version, body}` a decision, as the store had it, and a last line
`{state}` with the final state document. Verifying reads the store of a live run, else this file.
"""

import json
from typing import Any

from bamboo.coord.memory_store import MemoryStore
from bamboo.coord.replay import verify_decisions
from bamboo.errors import InputError
from bamboo.ports import Entry, Store
from cli.live import live_store
from cli.runs import RunFolder, write_text


def save_decisions(folder: RunFolder, store: Store) -> int:
    """Copy the whole log into the run's folder; the number of entries. Raises StoreUnavailable."""
    lines = []
    version = -1
    while entries := store.entries(after_version=version, timeout_s=0.0):
        lines += [json.dumps({"version": e.version, "body": e.body}) for e in entries]
        version = entries[-1].version
    lines.append(json.dumps({"state": store.read().state}))
    write_text(folder.decisions, "\n".join(lines) + "\n")
    return len(lines) - 1


def check_decisions(folder: RunFolder) -> dict[str, Any]:
    """Recompute every decision of a run; the value of `bamboo verify --decisions --json`.

    Raises InputError when the run has neither a live store nor a saved log, or no decision is in
    it: nothing was compared then, and nothing must be called equal.
    """
    if folder.decisions.exists():
        report = verify_decisions(saved_store(folder))
    elif folder.receipt.exists():
        raise InputError(
            f"run {folder.id} has ended and {folder.decisions} is missing: it was taken away, in "
            "which case put it back, or the run ended before it had a log to save"
        )
    else:
        with live_store(folder) as store:
            report = verify_decisions(store)
    if report.equal and not report.decisions:
        raise InputError(
            f"run {folder.id} has made no decision"
            + (" before it ended" if folder.receipt.exists() else " so far")
            + ": there is nothing to recompute; take a run whose nodes have joined"
        )
    return {
        "run": folder.id,
        "equal": report.equal,
        "decisions": report.decisions,
        "first_version": report.first_version,
        "first_difference": report.first_difference,
    }


def saved_store(folder: RunFolder) -> MemoryStore:
    """The saved log as a store. Raises InputError when the file is not what was saved."""
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
