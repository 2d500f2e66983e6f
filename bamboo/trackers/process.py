"""`python -m bamboo.loading bamboo.trackers.process RUN_DIR TRACKER`: feeds one tracker of one run.

    the books of the run  ->  points, batch by batch  ->  the tracker's library

Rules. (1) It reads files and is read by nobody in a hurry: whatever the library does, the launcher
and the training wait for none of it. (2) A library that does not return within `STALL_S` ends this
process, also while it holds the interpreter. The next one passes over what was being offered. (3)
What the library prints goes nowhere, since it may name credentials.

Standard input brings `end OUTCOME` (give away what is left, then finish) or `leave`; its end means
that the launcher is gone. Standard output has a line of JSON whenever points begin to be lost,
`{"trouble": why}`, and when they are taken again, `{"fine": true}`.
"""

import faulthandler
import fcntl
import hashlib
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from bamboo.errors import BambooError, BooksUnwritable, InputError
from bamboo.ids import RunId
from bamboo.new_files import open_to_append
from bamboo.runs.run_folder import RunFolder, started_at_s
from bamboo.trackers.adapters import ADAPTERS, Adapter, TrackedRun, key_of
from bamboo.trackers.places import without_secrets
from bamboo.trackers.points import (
    Position,
    job_values,
    next_batch,
    position_file,
    read_position,
    write_position,
)

STALL_S = 60
"""The longest time that one call of a library may take."""
LOOK_EVERY_S = 1.0
LOCK_S = 15.0
"""The process of an earlier launcher leaves within this time, or hangs."""
KILLED = "the tracker hung or died while it took them"


def main(arguments: list[str]) -> int:
    """Feed the tracker until the end; see the top of the file. 0: it has everything."""
    path, name = Path(arguments[0]), arguments[1]
    os.nice(19)
    os.umask(0o077)
    say, nothing = _own_output()
    faulthandler.dump_traceback_later(STALL_S, exit=True, file=nothing)
    folder, orders = RunFolder(id=RunId(path.name), path=path), _Orders()
    try:
        held = _locked(path / "trackers" / f"{name}.lock", orders)
        teller = _Teller(folder, name, say, alive=lambda: _renew(nothing))
        teller.run(orders)
        held.close()
    except Exception as error:  # noqa: BLE001 - whatever a library raises
        say({"trouble": _words(error)})
        return 1
    return 0


class _Orders:
    """What the launcher has asked for by now."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.outcome: str | None = None
        """Of the run, once it is over."""
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def is_left(self) -> bool:
        """Whether the launcher is gone, or goes and leaves the run to another one."""
        return self.came.is_set() and self.outcome is None

    def _read(self) -> None:
        word, _, outcome = sys.stdin.readline().strip().partition(" ")
        if word == "end":
            self.outcome = outcome
        self.came.set()


class _Teller:
    """Hands the books of a run to one tracker."""

    def __init__(
        self,
        folder: RunFolder,
        name: str,
        say: Callable[[dict[str, Any]], None],
        *,
        alive: Callable[[], None],
    ) -> None:
        """`say` tells the launcher; `alive` is called whenever the library has returned."""
        self._folder = folder
        self._say = say
        self._alive = alive
        self._path = position_file(folder, name)
        self._position = read_position(self._path)
        self._troubled = False
        if self._position.trying:
            self._moved(self._position.settled(why=KILLED))
        self._adapter = self._opened(name)
        warnings.showwarning = self._warned

    def _opened(self, name: str) -> Adapter:
        folder = self._folder
        body = folder.read_json(folder.resolved)
        job = job_values(body["job"])
        own = folder.path / "trackers" / name
        own.mkdir(mode=0o700, exist_ok=True)
        tracked = TrackedRun(
            run=folder.id,
            key=key_of(folder.id, started_at_s(folder)),
            project=str(job.get("log.project", "bamboo")),
            folder=own,
            job=job,
        )
        adapter = ADAPTERS[name](tracked)
        digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:16]
        if digest != self._position.job:
            adapter.job(job, step=int(body.get("from_step", 0)))
            self._moved(replace(self._position, job=digest))
        return adapter

    def run(self, orders: _Orders) -> None:
        """Hand over what there is until the run is over or the launcher is gone."""
        while True:
            self._alive()
            over = orders.came.is_set()  # before the look: what came before it is read
            more = self._look()
            if over and (orders.is_left or not more):
                break
            if not more:
                orders.came.wait(LOOK_EVERY_S)
        self._adapter.finish(orders.outcome or "")

    def _look(self) -> bool:
        """Hand over the next batch; whether there was one, or it must wait for room on the disk."""
        points, after = next_batch(self._folder, self._position)
        if (after.metrics, after.events) == (self._position.metrics, self._position.events):
            return False
        try:
            self._moved(after)
        except BooksUnwritable as error:
            self._trouble(str(error))
            return False
        try:
            if points:
                self._adapter.log(points)
        except Exception as error:  # noqa: BLE001 - whatever a library raises
            self._settled(why=_words(error))
        else:
            self._settled()
        return True

    def _settled(self, *, why: str = "") -> None:
        self._position = self._position.settled(why=why)
        if why:
            self._trouble(why)
        elif self._troubled:
            self._troubled = False
            self._say({"fine": True})
        try:
            self._moved(self._position)
        except BooksUnwritable as error:  # the next process counts these points as lost
            self._trouble(str(error))

    def _moved(self, position: Position) -> None:
        write_position(self._path, position)
        self._position = position

    def _trouble(self, why: str) -> None:
        self._troubled = True
        self._say({"trouble": why})

    def _warned(self, message: Warning | str, *_: object, **__: object) -> None:
        """A library that sends from a thread of its own warns where it raises nothing."""
        self._say({"trouble": without_secrets(str(message))})


def _own_output() -> tuple[Callable[[dict[str, Any]], None], FileIO]:
    """What tells the launcher something, and a file that keeps nothing, which takes all that is
    printed from now on."""
    speaks = os.dup(1)
    os.set_inheritable(speaks, False)
    nothing = FileIO(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), "wb")
    for printed in (1, 2):
        os.dup2(nothing.fileno(), printed)

    def say(line: dict[str, Any]) -> None:
        try:
            os.write(speaks, json.dumps(line).encode() + b"\n")
        except OSError:  # the launcher is gone, or reads no more: this is for it alone
            return

    os.set_blocking(speaks, False)
    return say, nothing


def _renew(nothing: FileIO) -> None:
    faulthandler.dump_traceback_later(STALL_S, exit=True, file=nothing)


def _locked(path: Path, orders: _Orders) -> FileIO:
    """Become the only process that feeds this tracker. A record lock is not inherited by whatever
    the library starts. Raises BambooError where another one does not leave."""
    file = open_to_append(path)
    give_up_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if orders.is_left or time.monotonic() >= give_up_s:
                break
        else:
            return file
        time.sleep(0.1)
    file.close()
    raise BambooError("the process of an earlier launcher still holds the tracker")


def _words(error: Exception) -> str:
    text = without_secrets(str(error))
    known = isinstance(error, BambooError | InputError)
    return text if known else f"{type(error).__name__}: {text}".rstrip(": ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
