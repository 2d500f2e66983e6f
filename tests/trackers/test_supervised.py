"""A tracker that hangs, dies or refuses loses points, by number, and holds up nobody. Real
processes, real SIGKILL."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bamboo.core.state import Outcome
from bamboo.errors import BambooError, BooksUnwritable
from bamboo.runs.ports import NoteScreen
from bamboo.trackers import process, supervised
from bamboo.trackers.adapters import ADAPTERS
from bamboo.trackers.places import where
from bamboo.trackers.points import position_file, read_position
from bamboo.trackers.supervised import Logged, Trackers
from testbed.waiting import wait_until
from tests.trackers.books import Books
from tests.trackers.fake import SECRET, Fake, command, kept

NAME = "wandb"


class Bench:
    """A run with one tracker, which is a fake."""

    def __init__(self, home: Path) -> None:
        self.books = Books(home)
        self.own = self.books.folder.path / "trackers" / NAME
        self.notes: list[str] = []

    def trackers(self, kind: str) -> Trackers:
        screen = NoteScreen(self.notes.append)
        found = Trackers(self.books.folder, self.books.job.log, screen, command=command(kind))
        found.look_after()
        return found

    def wait(self, trackers: Trackers, condition: Callable[[], Any], what: str) -> None:
        def turned() -> Any:
            trackers.look_after()
            return condition()

        wait_until(turned, what=what, timeout_s=30.0)

    def taken(self) -> int:
        return read_position(position_file(self.books.folder, NAME)).taken

    def steps(self) -> list[int]:
        lines = kept(self.books.folder.path, NAME)
        return [line["step"] for line in lines if line.get("values")]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(supervised, "FIRST_PAUSE_S", 0.05)
    return Bench(tmp_path)


def logged(trackers: Trackers, outcome: Outcome | None = Outcome.DONE) -> Logged:
    (one,) = trackers.close(outcome)
    return one


def test_launchers_and_parts_continue_one_tracker_run(bench: Bench) -> None:
    books = bench.books
    first = bench.trackers("keeps")
    for step in range(3):
        books.step(step)
    books.event("PeerLost", "node i-1.0 is gone", step=2)
    bench.wait(first, lambda: bench.taken() == 4, "four points")
    books.step(3)
    assert logged(first, None).lost <= 1  # what a launcher that leaves does not wait for
    second = bench.trackers("keeps")
    books.step(4)
    assert logged(second) == Logged(
        tracker=NAME, where=where(books.job.log, books.folder.path)[NAME], taken=6, lost=0,
        late=False, why="",
    )  # fmt: skip
    books.resolve(steps=9, from_step=5)
    third = bench.trackers("keeps")
    books.step(5)
    assert logged(third).sentence == ""
    assert bench.steps() == [1, 2, 3, 4, 5, 6]
    lines = kept(books.folder.path, NAME)
    assert len({line["opened"] for line in lines if "opened" in line}) == 1
    assert [line for line in lines if "from" in line] == [
        {"steps": 8, "from": 0},
        {"steps": 9, "from": 5},
    ]
    assert [line["finished"] for line in lines if "finished" in line] == ["", "done", "done"]
    assert not bench.notes


def test_one_that_dies_loses_what_it_was_taking_and_is_started_again(bench: Bench) -> None:
    trackers = bench.trackers("dies")
    bench.books.step(0)
    bench.wait(trackers, lambda: bench.taken() == 1, "the first point")
    bench.books.step(1)
    bench.wait(trackers, lambda: bench.notes, "that it has ended")
    bench.books.step(2)
    one = logged(trackers)
    assert (one.taken, one.lost, bench.steps()) == (2, 1, [1, 3])
    assert bench.notes == [
        "tracker wandb: its process ended with status 7; training goes on",
        one.sentence,
    ]
    assert one.sentence.startswith("tracker wandb lacks 1 of 3 points: ")


@pytest.mark.parametrize("kind", ["hangs", "holds"])
def test_one_that_hangs_holds_up_nobody_and_is_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(supervised, "END_S", 0.5)
    trackers = bench.trackers(kind)
    bench.books.step(0)
    bench.wait(trackers, (bench.own / "hangs").exists, "it hangs")
    for step in range(1, 200):  # if a turn waited for it, this would not end
        bench.books.step(step)
        trackers.look_after()
    bench.wait(trackers, lambda: bench.notes, "its process ends by itself")
    one = logged(trackers)
    assert (one.taken, one.lost) == (0, 200)
    assert one.sentence == bench.notes[-1]


def test_one_that_hangs_at_the_end_is_ended_and_that_is_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "END_S", 2.0)
    monkeypatch.setattr(supervised, "AT_ONCE_S", 0.5)
    trackers = bench.trackers("hangs in finish")
    bench.books.step(0)
    bench.wait(trackers, lambda: bench.taken() == 1, "the point")
    (one,) = trackers.close(Outcome.STOPPED, at_once=True)
    assert (one.taken, one.lost, one.late) == (1, 0, True)
    assert one.sentence.endswith(
        "was not ready in time after the end, so what it still held is lost"
    )


def test_one_that_refuses_loses_by_number_and_tells_no_secret(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trackers = bench.trackers("raises")
    bench.books.step(0)
    bench.wait(trackers, lambda: bench.notes, "that it refuses")
    bench.books.step(1)
    one = logged(trackers)
    assert (one.taken, one.lost) == (0, 2)
    assert one.why == "ConnectionError: no route to https://host/?token=..."
    everything = [*bench.notes, one.sentence, (bench.own.parent / f"{NAME}.json").read_text()]
    assert SECRET not in "".join(everything)


def test_what_one_has_forked_is_ended_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trackers = bench.trackers("forks")
    bench.books.step(0)
    bench.wait(trackers, lambda: bench.notes, "that it has ended")
    child = int((bench.own / "child").read_text())
    wait_until(lambda: not is_alive(child), what="its child is gone")
    bench.books.step(1)
    trackers.look_after()
    one = logged(trackers)
    assert (one.taken, one.lost) == (0, 2)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_launcher_leaves_no_process_and_no_point_twice(bench: Bench) -> None:
    trackers = bench.trackers("keeps")
    bench.books.step(0)
    bench.wait(trackers, lambda: bench.taken() == 1, "the point")
    (one,) = trackers._all
    assert one._process is not None
    assert one._process.stdin is not None
    one._process.stdin.close()  # as the kernel does when the launcher is killed
    assert one._process.wait(timeout=20) == 0
    one._process.stdout.close()  # type: ignore[union-attr]
    bench.books.step(1)
    assert logged(bench.trackers("keeps")).taken == 2
    assert bench.steps() == [1, 2]


def test_on_a_full_disk_nothing_is_offered_until_there_is_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setitem(ADAPTERS, NAME, lambda tracked: Fake(tracked, "keeps"))
    (bench.own.parent).mkdir()
    teller = process._Teller(bench.books.folder, NAME, said.append, alive=lambda: None)

    def full(*_: object) -> None:
        raise BooksUnwritable("no space left")

    bench.books.step(0)
    with monkeypatch.context() as patch:
        patch.setattr(process, "write_position", full)
        assert not teller._look()
    assert (bench.steps(), said) == ([], [{"trouble": "no space left"}])
    assert teller._look()
    assert (bench.steps(), bench.taken(), said[1:]) == ([1], 1, [{"fine": True}])


def test_a_process_that_is_killed_while_it_offers_passes_over_what_it_offered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "END_S", 5.0)
    trackers = bench.trackers("hangs")
    bench.books.step(0)
    bench.wait(trackers, (bench.own / "hangs").exists, "it hangs")
    (one,) = trackers._all
    assert one._process is not None
    os.kill(one._process.pid, signal.SIGKILL)
    one._put_away()
    kept_on = logged(bench.trackers("keeps"))
    assert (kept_on.taken, kept_on.lost, kept_on.why) == (0, 1, process.KILLED)


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


def test_the_process_of_an_earlier_launcher_is_waited_for_unless_the_launcher_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = object.__new__(process._Orders)
    orders.came, orders.outcome = threading.Event(), None
    orders.came.set()
    path, pipe = tmp_path / "lock", subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        monkeypatch.setattr(time, "sleep", lambda _: holder.communicate())
        with pytest.raises(BambooError, match="still holds the tracker"):
            process._locked(path, orders)
        orders.outcome = "done"
        process._locked(path, orders).close()
