"""Runs independent pieces of work on all cores and returns the results in order.

Rule: the results do not depend on the number of processes. No process outlives its parent, however
that ends. A process that is killed is an error, and no result is left out.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from bamboo.errors import ProcessLost

P = TypeVar("P")
R = TypeVar("R")
AHEAD = 4
"""Pieces per process that may be handed out before the first of them is answered."""
JOIN_S = 10.0
"""A killed process is gone well within that."""
_FORK = get_context("fork")
_Members = dict["Connection[Any, Any]", BaseProcess]


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def in_order(work: Callable[[P], R], pieces: Iterable[P], *, processes: int) -> Iterator[R]:
    """`work` of each piece, in order, on `processes` processes; 1 means in this process.

    Pieces, answers and errors of `work` must be picklable. Raises what `work` raises, and
    ProcessLost.
    """
    if processes <= 1:
        yield from map(work, pieces)
        return
    with _crew(work, processes) as members:
        yield from _answers(members, pieces)


@contextmanager
def _crew(work: Callable[[P], R], size: int) -> Iterator[_Members]:
    members: _Members = {}
    life, held = os.pipe()
    try:
        # This process handles a Ctrl-C; the others must not see one before they ignore it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(size):
                ours, theirs = _FORK.Pipe()
                process: BaseProcess = _FORK.Process(
                    target=_serve, args=(work, theirs, life, held), daemon=True
                )
                members[ours] = process
                process.start()
                theirs.close()
        except OSError as error:
            raise ProcessLost(
                f"no process can be started: {error.strerror}; end others, or allow more"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield members
    finally:
        started = [process for process in members.values() if process.pid is not None]
        for process in started:
            process.kill()
        for process in started:
            process.join(JOIN_S)
        for connection in members:
            connection.close()
        os.close(held)
        os.close(life)


def _serve(work: Callable[[P], R], asked: "Connection[Any, Any]", life: int, held: int) -> None:
    """Process pieces until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.close(held)
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    while True:
        piece = asked.recv()
        answer: R | None = None
        failed: Exception | None = None
        try:
            answer = work(piece)
        except Exception as error:  # noqa: BLE001
            failed = error
        asked.send((answer, failed))


def _end_with(life: int) -> None:
    """Only the parent holds the other end of this pipe, so this process ends with it."""
    os.read(life, 1)
    os._exit(1)


def _answers(members: _Members, pieces: Iterable[P]) -> Iterator[Any]:
    to_ask = enumerate(pieces)
    idle, busy = list(members), dict[Any, int]()
    answers: dict[int, Any] = {}
    asked = given = 0
    while True:
        room = min(len(idle), given + AHEAD * len(members) - asked)
        for index, piece in islice(to_ask, max(0, room)):
            connection = idle.pop()
            busy[connection], asked = index, index + 1
            with _or_lost(members[connection]):
                connection.send(piece)
        if not busy:
            return
        for ready in wait(list(busy)):
            assert isinstance(ready, Connection)
            with _or_lost(members[ready]):
                answer, failed = ready.recv()
            if failed is not None:
                raise failed
            answers[busy.pop(ready)] = answer
            idle.append(ready)
        while given in answers:
            yield answers.pop(given)
            given += 1


@contextmanager
def _or_lost(process: BaseProcess) -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        process.join(JOIN_S)
        code = process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"over with exit {code}"
        raise ProcessLost(
            f"a process that played seeds was {how}, so not all are played; free memory if it was "
            "short, and start again"
        ) from error
