"""What is known of the instances of a run: their duties, and how busy they were, part by part.

Rule: the ledger of a live run is read first. Where the ledger has lost records, the events in the
run's folder are read. For a run of a release that wrote neither, the duties are recomputed from the
decisions.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bamboo.coord.follow import Follower, all_records
from bamboo.coord.ledger import LedgerRecord, record_of
from bamboo.errors import UnreadableRecord
from bamboo.planner.attribution import Work
from bamboo.planner.duties import DutyChange, Roster
from bamboo.ports import Store
from bamboo.runs.books import DUTY, PART, WORK
from bamboo.runs.decisions import saved_store
from bamboo.runs.run_folder import RunFolder, part_of, parts_before
from bamboo.runs.store_records import Hearing
from bamboo.telemetry.reader import read_events, read_metrics

LEDGER = "ledger"
EVENTS = "events"
DECISIONS = "decisions"


@dataclass(slots=True, kw_only=True)
class Told:
    """What is known of one part of a run."""

    source: str
    changes: list[DutyChange] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


def told_of(
    folder: RunFolder, *, store: Store | None, ledger: Iterable[LedgerRecord]
) -> list[Told]:
    """Part by part, from the best source. `store` and its `ledger` are those of a live run.

    Raises InputError for damaged files, StoreUnavailable, and UnreadableRecord for records of
    another release.
    """
    now = part_of(folder).number
    found = told_by_events(folder)
    if store is not None:
        lived = told_by_ledger(ledger)
        if lived is not None:
            found[now] = lived
        elif now not in found:
            found[now] = told_by_decisions(folder, store, number=now)
    for number, kept in {**parts_before(folder), now: folder}.items():
        if number not in found and kept.decisions.exists():
            found[number] = told_by_decisions(folder, saved_store(kept), number=number)
    return [found[number] for number in sorted(found)]


def told_by_ledger(ledger: Iterable[LedgerRecord]) -> Told | None:
    """From the ledger; None where it has lost changes, which are numbered."""
    told = Told(source=LEDGER)
    changes: dict[int, DutyChange] = {}
    for record in ledger:
        if isinstance(record, DutyChange):
            changes[record.number] = record
        elif isinstance(record, Work):
            told.work.append(record)
    if not changes or max(changes) + 1 != len(changes):
        return None
    told.changes = [changes[number] for number in sorted(changes)]
    return told


def told_by_events(folder: RunFolder) -> dict[int, Told]:
    """Part of the run -> what its launchers wrote into their events."""
    found: dict[int, Told] = {}
    path = folder.events / "launcher.jsonl"
    for event in read_events(path) if path.exists() else ():
        if event.kind not in (DUTY, WORK):
            continue
        body = dict(event.data)
        told = found.setdefault(int(body.pop(PART, 1)), Told(source=EVENTS))
        record = record_of(body)
        if isinstance(record, DutyChange):
            told.changes.append(record)
        elif isinstance(record, Work):
            told.work.append(record)
    return {number: told for number, told in found.items() if told.changes}


def told_by_decisions(folder: RunFolder, store: Store, *, number: int) -> Told:
    """The duties, recomputed from the decision log of part `number`, without work."""
    roster = Roster()
    for metric in read_metrics(folder.metrics):
        if metric.at_s is not None:
            roster.stepped(metric.step + 1, metric.at_s)
    for record in map(Hearing().metric, all_records(store, "metrics")):
        if record is not None and record.get("kind") == "step":
            roster.stepped(int(record["step"]) + 1, float(record["t_s"]))
    follower = Follower()
    decisions = follower.catch_up(store)
    first = follower.first
    if first is None:
        raise UnreadableRecord(f"the decision log of run {folder.id} is empty")
    before = first.state
    if number > 1:
        roster.resumed(max((c.step for c in before.checkpoints), default=0), first.at_s)
    for decision in decisions:
        roster.decided(before, decision.state, decision.event, decision.now_s)
        before = decision.state
    return Told(source=DECISIONS, changes=list(roster.changes()))
