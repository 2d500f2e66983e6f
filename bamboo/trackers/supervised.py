"""The launcher's side of trackers: one process for each, started, watched, ended.

    launcher's turn  ->  what the processes said, one that ended is started again
    launcher's end   ->  the rest within `END_S`, then the processes are killed; what was lost

Rule: nothing here waits for a tracker before the run is over. The queue to a tracker is the run's
own books, which its process reads, so a slow one takes no memory, and what it has not read at the
end is lost by number.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bamboo.config.tree import LogConfig
from bamboo.core.state import Outcome
from bamboo.errors import InputError
from bamboo.loading import interpreter
from bamboo.runs.ports import Screen
from bamboo.runs.progress import Progress
from bamboo.runs.run_folder import RunFolder
from bamboo.trackers.places import where
from bamboo.trackers.points import Position, position_file, read_position, waiting

END_S = 20.0
"""All trackers together may take so long after the end of a run."""
AT_ONCE_S = 2.0
"""The same where the user wants it to end at once."""
SAID_AFTER_S = 3.0
"""A longer wait at the end is announced."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Before the process of a tracker is started again; doubled each time."""
KILLED_S = 5.0
"""The longest wait for a process that was killed."""
NOTE_EVERY_S = 60.0
"""A tracker's troubles are shown once in so long."""
_TURN_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """What one tracker has of a run: `receipt.json` has it as `trackers`."""

    tracker: str
    where: str
    taken: int
    """Points that its library took, in all parts of the run."""
    lost: int
    """Points that it did not take."""
    late: bool
    """Whether it was ended before it had finished, with what it had not given away."""
    why: str
    """Why the last of them were lost."""

    @property
    def sentence(self) -> str:
        """`tracker wandb lacks 12 of 340 points: ConnectionError: ...`; "" where it has all."""
        said = []
        if self.lost:
            said.append(f"lacks {self.lost} of {self.taken + self.lost} points")
        if self.late:
            said.append("was not ready in time after the end, so what it still held is lost")
        why = f": {self.why}" if self.why and self.lost else ""
        return f"tracker {self.tracker} {' and '.join(said)}{why}" if said else ""


class Trackers:
    """The processes that feed a run's trackers. `close` ends them. The launcher takes it for its
    screen, which it tells of each turn, and it passes everything on to that."""

    def __init__(
        self,
        folder: RunFolder,
        log: LogConfig,
        screen: Screen,
        *,
        command: Callable[[str, str], list[str]] = lambda path, name: interpreter(
            "bamboo.trackers.process", path, name
        ),
    ) -> None:
        """`command` is what feeds a tracker, by folder and name."""
        self._folder = folder
        self._screen = screen
        self._places = where(log, folder.path)
        own = folder.path / "trackers"
        self._all = [
            _Supervised(
                name, command(str(folder.path.absolute()), name), folder=own, note=screen.note
            )
            for name in log.to
        ]
        self.decided = screen.decided
        self.stepped = screen.stepped
        self.evaluated = screen.evaluated
        self.note = screen.note
        self.detail = screen.detail

    def turned(self, progress: Progress) -> None:
        """Start what does not run, and look after the rest; returns at once."""
        self.look_after()
        self._screen.turned(progress)

    def look_after(self) -> None:
        """The same without a screen."""
        for one in self._all:
            one.turned()

    def close(self, outcome: Outcome | None, *, at_once: bool = False) -> list[Logged]:
        """The run is over with this outcome, or goes on without this launcher: None. Give the
        trackers `END_S` for the rest, or `AT_ONCE_S`, and end them. Shows what is lost."""
        begun_s = time.monotonic()
        within_s = AT_ONCE_S if at_once else END_S
        said = False
        for one in self._all:
            one.let_end("" if outcome is None else outcome.value)
        while (late := [one.name for one in self._all if one.lives]) and (
            passed_s := time.monotonic() - begun_s
        ) < within_s:
            if passed_s > SAID_AFTER_S and not said:
                said = True
                self._screen.note(f"waiting for {', '.join(late)}, {within_s:g} s at most")
            for one in self._all:
                one.listen()
            time.sleep(_TURN_S)
        logged = [self._logged(one) for one in self._all]
        for sentence in (what.sentence for what in logged if outcome is not None):
            if sentence:
                self._screen.note(sentence)
        return logged

    def _logged(self, one: "_Supervised") -> Logged:
        late = one.end()
        try:
            position = read_position(position_file(self._folder, one.name))
            behind = waiting(self._folder, position)
        except InputError as error:
            position = Position(why=str(error))
            behind = 1  # at least
        return Logged(
            tracker=one.name,
            where=self._places[one.name],
            taken=position.taken,
            lost=position.lost + position.trying + behind,
            late=late,
            why=one.trouble or position.why,
        )


class _Supervised:
    """The process of one tracker."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        note: Callable[[str], None],
    ) -> None:
        self.name = name
        self._folder = folder
        self.trouble = ""
        """What was said last, where points are being lost."""
        self._command = command
        self._note = note
        self._process: subprocess.Popen[bytes] | None = None
        self._has_run = False
        self._said = b""
        self._start_at_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._noted_at_s = -math.inf

    @property
    def lives(self) -> bool:
        """Whether its process runs."""
        if self._process is None:
            return False
        # It is not waited for yet, so that nobody else gets its number before its group is killed.
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, ended) is None

    def turned(self) -> None:
        """Hear what it says, and start it where it does not run and its pause is over."""
        self.listen()
        if self._process is not None and not self.lives:
            self._ended()
        if self._process is None and time.monotonic() >= self._start_at_s:
            self._start()

    def _start(self) -> None:
        self._has_run = True
        with contextlib.suppress(OSError):  # the process says what is wrong
            self._folder.mkdir(mode=0o700, exist_ok=True)
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._troubled(f"its process cannot be started: {error.strerror}")
            self._wait()
            return
        assert self._process.stdout is not None, "it is a pipe"
        os.set_blocking(self._process.stdout.fileno(), False)

    def _ended(self) -> None:
        status = self._put_away()
        if not self.trouble:
            self._troubled(f"its process ended with status {status}")
        self._wait()

    def _wait(self) -> None:
        self._start_at_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def listen(self) -> None:
        """Take in what it has said since; returns at once."""
        if self._process is None or self._process.stdout is None:
            return
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._process.stdout.fileno(), 1 << 16):
                self._said += part
                if len(part) < 1 << 16:
                    break
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            self._heard(line)

    def _heard(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return
        if "trouble" in said:
            self._troubled(str(said["trouble"]))
        else:
            self.trouble = ""

    def _troubled(self, why: str) -> None:
        self.trouble = why
        if time.monotonic() >= self._noted_at_s + NOTE_EVERY_S:
            self._noted_at_s = time.monotonic()
            self._note(f"tracker {self.name}: {why}; training goes on")

    def let_end(self, outcome: str) -> None:
        """Ask it for the rest. Where it does not run it is started for that."""
        if not self.lives:
            self._put_away()
            if self._has_run and outcome:
                self._start()
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has just ended
                self._process.stdin.write(f"end {outcome}\n".encode() if outcome else b"leave\n")
                self._process.stdin.close()

    def end(self) -> bool:
        """Kill it, with all that it has started and that is still of its group. Whether it was
        still running."""
        self.listen()
        late = self.lives
        status = self._put_away()
        if status and not late and not self.trouble:
            self.trouble = f"its process ended with status {status}"
        return late

    def _put_away(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            status = process.wait(timeout=KILLED_S)
        except subprocess.TimeoutExpired:  # the system holds it, as at a disk that does not answer
            status = -signal.SIGKILL
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return status
