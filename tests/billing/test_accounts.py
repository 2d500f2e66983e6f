"""What the launcher writes of duties and work, each once, and again where the ledger lost it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bamboo.billing.busy import busy_of, busy_to_the_end
from bamboo.billing.ledger import AFTER_CHANGE_S, WORK_EVERY_S, Accounts
from bamboo.coord.codec import Begin, LedgerRecord, PriceRecord, read_ledger
from bamboo.coord.follow import Decision, Follower
from bamboo.coord.memory_store import MemoryStore
from bamboo.core.events import StoreRefilled
from bamboo.core.state import Checkpoint, Policy
from bamboo.ids import run_id
from bamboo.planner.attribution import Work
from bamboo.planner.duties import DutyChange, Span
from bamboo.runs.books import DUTY, WORK, Booked
from tests.controller.world import START_S, FakeBooks, World, caught_up, job, joined, lost


def beat(forwards: int, busy_s: float) -> dict[str, object]:
    ops = {"F": forwards, "B": forwards, "FR": forwards, "BR": 0}
    return {"ops": ops, "busy_s": busy_s}


def decisions() -> tuple[Begin, Sequence[Decision]]:
    world = World(job())
    world.do([joined(), lost(2, 1), caught_up(1, 2)])
    follower = Follower()
    found = follower.catch_up(world.store)
    assert follower.first is not None
    return follower.first, found


def told(accounts: Accounts) -> Accounts:
    first, found = decisions()
    for decision in found:
        accounts.decided(decision, first=first)
    return accounts


def kept(store: MemoryStore) -> list[LedgerRecord]:
    return [record for _, record in read_ledger(store)]


def write(accounts: Accounts, store: MemoryStore, *, now_s: float = START_S) -> None:
    world = World(job())
    progress = replace(world.launcher.progress, now_s=now_s)
    accounts.book(progress)
    accounts.write(store, progress, world.fleet.rented(), samples_per_step=16)


def test_a_lease_says_how_much_was_done_for_the_neighbour() -> None:
    """8 forwards and 8 backwards of two forwards each in 2.4 s: 0.1 s each, and 8 for another."""
    work = busy_of("i-1.0", beat(8, 2.4), at_s=5.0)
    assert work is not None
    assert (work.instance, work.useful_s, work.exact) == ("i-1", 2.4, False)
    assert work.redundant_s == pytest.approx(0.8)
    nothing = busy_of("i-1.0", beat(0, 0.0), at_s=5.0)
    assert nothing is not None
    assert nothing.redundant_s == 0.0
    assert busy_of("i-1.0", {"step": 3}, at_s=5.0) is None


def test_the_end_of_a_node_says_it_by_kind_and_as_a_lease_would() -> None:
    busy_s = {"F": 1.0, "B": 2.0, "X": 0.25, "S": 0.5, "FR": 1.5, "R": 0.125}
    record = {"kind": "memory", "node": "i-1.0", "busy_s": busy_s, "ops": {"F": 4, "B": 4, "FR": 4}}
    rough, exact = busy_to_the_end(record, at_s=9.0)
    assert (rough.instance, rough.at_s, rough.exact) == ("i-1", 9.0, False)
    assert (rough.useful_s, rough.redundant_s) == (3.0, 1.0)
    assert (exact.instance, exact.at_s, exact.exact) == ("i-1", 9.0, True)
    assert (exact.useful_s, exact.redundant_s) == (3.75, 1.625)
    assert busy_to_the_end({"kind": "step", "step": 1}, at_s=9.0) == ()
    assert busy_to_the_end({"kind": "memory", "node": "i-1.0"}, at_s=9.0) == ()


def test_everything_is_written_once_and_in_the_same_words() -> None:
    books, store = FakeBooks(), MemoryStore(run_id("r"))
    accounts = told(Accounts(Booked(), books))
    write(accounts, store)
    write(accounts, store)
    found = [r for r in kept(store) if isinstance(r, DutyChange)]
    assert [one.number for one in found] == list(range(len(found)))
    booked = [data for kind, data in books.events if kind == DUTY]
    assert [one["number"] for one in booked] == [one.number for one in found]
    assert sum(isinstance(r, PriceRecord) for r in kept(store)) == 4


def test_a_refilled_ledger_is_written_again_and_the_books_are_not() -> None:
    books, store = FakeBooks(), MemoryStore(run_id("r"))
    first, found = decisions()
    accounts = told(Accounts(Booked(), books))
    accounts.told("i-0.0", beat(8, 2.4), at_s=START_S)
    write(accounts, store)
    refilled = replace(
        found[-1],
        event=StoreRefilled(reporter="i-0.0"),
        state=replace(found[-1].state, version=found[-1].version + 1),
    )
    accounts.decided(refilled, first=first)
    other, before = MemoryStore(run_id("r")), len(books.events)
    write(accounts, other)
    again = [r for r in kept(other) if isinstance(r, DutyChange)]
    assert again == [r for r in kept(store) if isinstance(r, DutyChange)]
    assert [r for r in kept(other) if isinstance(r, Work)] == [
        r for r in kept(store) if isinstance(r, Work)
    ]
    assert sum(isinstance(r, PriceRecord) for r in kept(other)) == 4
    assert len(books.events) == before


def test_work_is_noted_now_and_then_and_the_newest_at_the_end() -> None:
    books, store = FakeBooks(), MemoryStore(run_id("r"))
    accounts = Accounts(Booked(), books)

    def noted() -> int:
        return sum(kind == WORK for kind, _ in books.events)

    accounts.told("i-0.0", beat(8, 2.4), at_s=START_S)
    write(accounts, store)
    assert noted() == 1
    accounts.told("i-0.0", beat(16, 4.8), at_s=START_S + 1)
    write(accounts, store, now_s=START_S + WORK_EVERY_S - 1)
    assert noted() == 1
    told(accounts)
    write(accounts, store, now_s=START_S + AFTER_CHANGE_S)
    assert noted() == 2, "their duties have changed"
    write(accounts, store, now_s=START_S + 2 * WORK_EVERY_S)
    assert noted() == 2, "nothing was done since"
    accounts.told("i-0.0", beat(24, 7.2), at_s=START_S + 130)
    progress = replace(World(job()).launcher.progress, now_s=START_S + 131)
    accounts.book(progress, last=True)
    assert noted() == 3


def test_what_was_measured_at_the_end_is_not_overwritten_by_a_late_lease() -> None:
    books = FakeBooks()
    accounts = Accounts(Booked(), books)
    accounts.measured({"kind": "memory", "node": "i-0.0", "busy_s": {"F": 1.0}}, now_s=START_S)
    accounts.told("i-0.0", beat(24, 7.2), at_s=START_S + 1)
    accounts.book(World(job()).launcher.progress, last=True)
    assert [data["exact"] for kind, data in books.events if kind == WORK] == [False, True]


def test_a_later_part_begins_with_what_it_takes_back() -> None:
    books = FakeBooks()
    first, found = decisions()
    first = replace(
        first, state=replace(first.state, checkpoints=(Checkpoint(step=3, era=0),)), at_s=START_S
    )
    accounts = Accounts(Booked(part=2, reached=((3, START_S - 50.0),)), books)
    accounts.decided(found[0], first=first)
    accounts.book(World(job()).launcher.progress)
    change = books.events[0][1]
    assert change["again"] == {"since_s": START_S - 50.0, "until_s": START_S}
    assert Span(**change["again"]).until_s == START_S


@pytest.mark.parametrize(("step", "reached", "lost"), [(3, 3, False), (3, 4, True)])
def test_a_part_that_ended_in_order_has_nothing_that_is_done_again(
    step: int, reached: int, lost: bool
) -> None:
    """What it took to write the state of a stop is no lost work, unless it is not gone on from."""
    books = FakeBooks()
    first, found = decisions()
    kept_at = (Checkpoint(step=step, era=0),)
    first = replace(first, state=replace(first.state, checkpoints=kept_at), at_s=START_S)
    times = tuple((steps, START_S - 90.0 + 10 * steps) for steps in range(1, reached + 1))
    accounts = Accounts(Booked(part=2, reached=times, finished=True), books)
    accounts.decided(found[0], first=first)
    accounts.book(World(job()).launcher.progress)
    change = books.events[0][1]
    since = {"since_s": START_S - 90.0 + 10 * step, "until_s": START_S}
    assert change["again"] == (since if lost else None)


def test_a_log_that_begins_in_the_middle_is_booked_from_there() -> None:
    books = FakeBooks()
    _, found = decisions()
    accounts = Accounts(Booked(duties=7), books)
    begin = Begin(state=found[3].state, policy=Policy(), at_s=START_S)
    accounts.decided(found[4], first=begin)
    accounts.book(World(job()).launcher.progress)
    ((kind, change),) = books.events
    assert (kind, change["number"]) == (DUTY, 0)
    assert {one["instance"] for one in change["changed"]} == {f"i-{n}" for n in range(4)}
