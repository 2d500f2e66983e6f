"""Pieces of work on several processes: their order, their errors, and that none is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from bamboo.errors import InputError, ProcessLost
from bamboo.sim.processes import in_order
from testbed.waiting import wait_until

pytestmark = pytest.mark.timeout(120)
PATIENCE_S = 60.0
WAITS = """
import os, sys, threading
from bamboo.errors import BambooError
from bamboo.sim.processes import in_order

def work(piece):
    os.write(1, f"{os.getpid()}\\n".encode())
    threading.Event().wait(300)

try:
    for _ in in_order(work, range(4), processes=2):
        pass
except BambooError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
except KeyboardInterrupt:
    sys.exit(130)
"""


def _odd_ones_late(piece: int) -> int:
    if piece % 2:
        sum(range(200_000))
    return piece * piece


def _refuses_seven(piece: int) -> int:
    if piece == 7:
        raise InputError("seven is none")
    return piece


def _kills_itself_at_three(piece: int) -> int:
    if piece == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return piece


def _pid(piece: int) -> int:
    del piece
    return os.getpid()


def _until_gone(pids: list[int]) -> None:
    wait_until(lambda: all(map(_dead, pids)), timeout_s=PATIENCE_S, what=f"{pids} are gone")


def _dead(pid: int) -> bool:
    """Ended, though nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


@contextmanager
def _at_work() -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """A process whose two others are both at a piece that has no end, and who these are."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    others: list[int] = []
    try:
        assert process.stdout is not None
        others += [int(process.stdout.readline()) for _ in range(2)]
        yield process, others
    finally:
        process.kill()
        for pid in others:
            if not _dead(pid):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_answers_come_in_the_order_of_the_pieces(processes: int) -> None:
    found = list(in_order(_odd_ones_late, range(40), processes=processes))
    assert found == [piece * piece for piece in range(40)]


def test_no_pieces_no_answers() -> None:
    assert list(in_order(_pid, (), processes=2)) == []


def test_pieces_without_end_are_asked_for_as_they_are_needed() -> None:
    found = in_order(_odd_ones_late, count(), processes=2)
    assert [next(found) for _ in range(30)] == [piece * piece for piece in range(30)]
    found.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_the_work_is_raised_where_it_was_asked_for(processes: int) -> None:
    with pytest.raises(InputError, match="seven is none"):
        list(in_order(_refuses_seven, range(20), processes=processes))


def test_a_process_that_is_killed_at_its_work_is_an_error() -> None:
    with pytest.raises(ProcessLost, match="killed by SIGKILL"):
        list(in_order(_kills_itself_at_three, range(20), processes=2))


def test_who_stops_asking_leaves_nobody_behind() -> None:
    found = in_order(_pid, count(), processes=2)
    pids = [next(found) for _ in range(20)]
    found.close()  # type: ignore[attr-defined]
    _until_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_none_outlives_the_one_that_asked(number: signal.Signals) -> None:
    with _at_work() as (process, others):
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == -number
        _until_gone(others)


def test_an_interrupt_ends_all_also_one_that_is_stopped() -> None:
    with _at_work() as (process, others):
        os.kill(others[0], signal.SIGSTOP)
        for pid in (*others, process.pid):  # a terminal sends it to all of them
            os.kill(pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, said) == (130, "")
        _until_gone(others)


def test_one_that_is_killed_ends_all_with_one_line() -> None:
    with _at_work() as (process, others):
        os.kill(others[1], signal.SIGKILL)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert "killed by SIGKILL, so not all are played" in said
        assert said.count("\n") == 1
        _until_gone(others)
