"""A launcher that takes up a run: nothing acted on twice, written twice, or left out."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bamboo.config.tree import ChaosConfig, Kill
from bamboo.controller.chaos import Chaos
from bamboo.controller.watching import Watcher
from bamboo.coord.codec import PriceRecord, read_ledger
from bamboo.core.state import Outcome
from bamboo.errors import InputError
from bamboo.ids import run_id
from bamboo.runs import lock, run_folder
from bamboo.runs.books import DUTY, PREEMPTION_ORDERED, Booked, FileBooks, read_booked
from bamboo.runs.run_folder import RunFolder
from bamboo.telemetry.records import MetricRecord, read_metrics
from tests.controller.world import (
    START_S,
    World,
    caught_up,
    finished,
    job,
    joined,
    left,
    lost,
    step,
)
from tests.runs.test_reading import folder_of


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bamboo.controller.launcher.TURN_S", 0.0)


def test_it_acts_on_the_newest_state_and_books_the_rest() -> None:
    world = World(job(steps=4))
    world.do([joined(), step(0, 5.0), step(1, 4.0), lost(2, 1), caught_up(1, 2), step(2, 3.0)])
    before = world.driver.state().version
    world.clock_s += 500.0  # more than any deadline of the job
    booked = Booked(version=4, losses=frozenset({(0, (5.0).hex()), (1, (4.0).hex())}))
    world._script = [
        [],
        [step(3, 2.0), finished(3, 0, 1, 3)],
        left(0, 1, 3),
    ]
    end = world.new_launcher(booked).run()
    assert end.outcome is Outcome.DONE
    assert world.fleet.versions[0] == before
    assert [(m.step, m.loss) for m in world.books.metrics] == [(2, 3.0), (3, 2.0)]
    assert [kind for kind, _ in world.books.events][:2] == ["PeerLost", "CaughtUp"]
    versions = [data["version"] for kind, data in world.books.events if kind != DUTY]
    assert versions == list(range(5, 5 + len(versions)))
    assert world.fleet.terminated == ["i-2"]
    assert (end.first_loss, end.step, len(end.preemptions)) == (5.0, 4, 1)


def test_an_effect_whose_author_died_is_performed_though_it_is_booked() -> None:
    world = World(job())
    world.do([joined(), lost(2, 1), caught_up(1, 2)])
    version = world.driver.state().version
    world._script = [[step(0), step(1), step(2), finished(2, 0, 1, 3)], left(0, 1, 3)]
    world.new_launcher(Booked(version=version)).run()
    assert world.fleet.terminated == ["i-2"]


def test_prices_that_stand_in_the_ledger_are_not_written_again() -> None:
    world = World(job(), [joined(), step(0)])
    world._script += [lambda: setattr(world, "leaves", True)]
    end = world.launcher.run()
    assert not end.finished
    assert world.fleet.all_terminated == 0
    world.leaves = False
    world._script = [[step(1), step(2), finished(2, 0, 1, 2, 3)], left(0, 1, 2, 3)]
    assert world.new_launcher().run().outcome is Outcome.DONE
    prices = [r.instance for _, r in read_ledger(world.store) if isinstance(r, PriceRecord)]
    assert sorted(prices) == [f"i-{n}" for n in range(4)]


def test_one_that_is_to_leave_while_it_catches_up_does_nothing() -> None:
    world = World(job())
    world.do([joined(), step(0)])
    world.leaves = True
    assert not world.new_launcher().run().finished
    assert (world.fleet.reconciled, world.fleet.all_terminated, world.books.metrics) == (0, 0, [])


def test_a_listed_preemption_is_written_down_before_it_is_ordered_and_not_repeated() -> None:
    kills = ChaosConfig(kill=(Kill(step=1, stage=1, notice_s=5.0),))
    world = World(job(chaos=kills))
    world.do([joined(), step(0)])
    world._script = [lambda: setattr(world, "leaves", True)]
    world.new_launcher().run()
    assert world.fleet.preempted == [("i-1", 5.0)]
    (place,) = [d["listed"] for kind, d in world.books.events if kind == PREEMPTION_ORDERED]
    world.leaves = False
    world._script = [[step(1), step(2), finished(2, 0, 1, 2, 3)], left(0, 1, 2, 3)]
    world.new_launcher(Booked(ordered=frozenset({place}))).run()
    assert len(world.fleet.preempted) == 1


def test_random_preemptions_go_on_where_they_were() -> None:
    config = ChaosConfig(kills_per_hour=360.0, seed=3)
    world = World(job())
    world.do(joined())
    state = world.driver.state()
    whole, later = Chaos(config), Chaos(config)
    for chaos in (whole, later):
        chaos.begin(START_S)
        chaos.begin(START_S + 77.0)  # only the first counts
    early = whole.due(state, steps_finished=0, now_s=START_S + 400.0)
    late = whole.due(state, steps_finished=0, now_s=START_S + 800.0)
    later.skip(START_S + 400.0)
    assert early
    assert late
    assert later.due(state, steps_finished=0, now_s=START_S + 800.0) == late


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return folder_of(tmp_path)


def metric(index: int) -> MetricRecord:
    return MetricRecord(
        step=index, loss=5.0 - index, tokens_per_s=1.0, usd=0.25, tokens_per_usd=1.0
    )


def test_the_books_say_what_stands_in_them_and_lose_a_torn_line(folder: RunFolder) -> None:
    assert read_booked(folder) == Booked()
    progress = World(job()).launcher.progress
    books = FileBooks(folder)
    for index in range(2):
        books.metric(metric(index))
        books.event("NodeJoined", progress, at_s=1.0, data={"reason": "x", "version": index + 1})
    books.event(PREEMPTION_ORDERED, progress, at_s=1.0, data={"listed": 3})
    books.close()
    for path in (folder.metrics, folder.events / "launcher.jsonl"):
        with path.open("a") as file:
            file.write('{"v":1,"ste')
    booked = read_booked(folder)
    losses = frozenset({(0, (5.0).hex()), (1, (4.0).hex())})
    assert booked == Booked(version=2, losses=losses, ordered=frozenset({3}))
    books = FileBooks(folder)
    books.metric(metric(2))
    books.close()
    assert [m.step for m in read_metrics(folder.metrics)] == [0, 1, 2]


def test_each_part_of_a_run_counts_its_decisions_anew(folder: RunFolder) -> None:
    """A launcher that takes up a later part must not take the first part's for its own."""
    progress = World(job()).launcher.progress
    for part, versions in ((1, range(1, 8)), (2, range(1, 3))):
        books = FileBooks(folder, part=part)
        for version in versions:
            books.event("NodeJoined", progress, at_s=1.0, data={"reason": "x", "version": version})
        books.close()
    assert read_booked(folder, part=1).version == 7
    assert read_booked(folder, part=2).version == 2
    assert read_booked(folder, part=3).version == -1


def test_one_has_the_lock_and_a_child_may_inherit_it(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, run_id("a"))
    held = lock.take(folder)
    assert held is not None
    assert lock.take(folder) is None
    assert not lock.is_free(folder)
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        pass_fds=(held.descriptor,),
    )
    held.close()
    held.close()
    assert not lock.is_free(folder)
    child.kill()
    child.communicate(timeout=10)
    assert lock.is_free(folder)
    again = lock.take(folder)
    assert again is not None
    # Nobody else's child keeps it by accident.
    assert not os.get_inheritable(again.descriptor)
    assert fcntl.fcntl(again.descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    again.close()


def test_a_watcher_shows_what_comes_after_it_came(folder: RunFolder) -> None:
    world = World(job())
    world.do([joined(), step(0, 5.0), lost(2, 1), caught_up(1, 2)])
    world._script = [[], []]
    watcher = Watcher(folder, world.screen)
    watcher.turn(world.store, timeout_s=0.0)
    assert (world.screen.steps, world.screen.reasons) == ([], [])
    assert "step 1/3" in world.screen.notes[0]
    assert len(watcher.progress.preemptions) == 1
    world.do([step(1), step(2), finished(2, 0, 1, 3)])
    watcher.turn(world.store, timeout_s=0.0)
    assert world.screen.steps == [2, 3]
    assert len(world.screen.reasons) == 3
    assert watcher.progress.finished
    assert len(world.screen.notes) == 1


def test_who_only_asks_for_the_launcher_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is read where its folder is read-only; nothing is forbidden to root, so that is
    played."""
    folder, there = run_folder.create(tmp_path, run_id("r")), os.open
    held = lock.take(folder)
    assert held is not None
    held.close()

    def read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return there(path, flags, mode)

    monkeypatch.setattr(lock.os, "open", read_only)
    assert lock.is_free(folder)
    with pytest.raises(InputError, match=r"launcher\.lock cannot be opened: Read-only file system"):
        lock.take(folder)
