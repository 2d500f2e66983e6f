"""Processes with torch: each gets one request, may report progress, and gives one answer.

Rule: torch is never imported here. The request goes to standard input, the answer is one JSON
object on a line of standard output; progress, and what is worked on, are JSON lines on standard
error. No child is left
behind.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any, Protocol

from bamboo.errors import BambooError, InputError
from bamboo.far_tokens import through
from bamboo.loading import interpreter, steady_environment

KILLED = -9
SHOWN = 80
"""Characters of an answer that is none."""
LAST_WORDS_S = 5.0
"""How long the output of an ended process is waited for."""


class Asked(Protocol):
    """A process with a process group of its own, and our ends of its input, output and errors."""

    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]

    def wait(self) -> None:
        """Wait until it has ended; others of its group may live on."""

    def kill(self) -> None:
        """SIGKILL; safe when it has ended."""

    def end(self) -> int:
        """Its exit status (negative: the signal), once none of its group is left. Processes that
        the user's code started must end too, since they hold its output open."""


class Started:
    """A new interpreter that runs a module with its arguments."""

    def __init__(self, module: Sequence[str]) -> None:
        self._process = process = subprocess.Popen(
            interpreter(*through(module[0]), *module[1:]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=steady_environment(),
            process_group=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin = process.stdin
        self.stdout = process.stdout
        self.stderr = process.stderr

    def wait(self) -> None:
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # before its number is reused
        return self._process.wait()


def answer(
    module: Sequence[str],
    request: str,
    *,
    what: str,
    told: Callable[[int, int], None] | None = None,
    good: tuple[int, ...] = (0,),
    deadline_s: float | None = None,
    too_long: str = "",
) -> dict[str, Any]:
    """Run a module with its arguments, and send it a request as `ask` does."""
    return ask(
        Started(module),
        request,
        what=what,
        told=told,
        good=good,
        deadline_s=deadline_s,
        too_long=too_long,
    )


def ask(
    process: Asked,
    request: str,
    *,
    what: str,
    told: Callable[[int, int], None] | None = None,
    good: tuple[int, ...] = (0,),
    deadline_s: float | None = None,
    too_long: str = "",
    works: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Send a request to a process, return its answer, and end the process. `told` is called with
    (step, steps), `works` with what it works on; `good` are the exit codes that come with an
    answer.

    Raises InputError with the process's own line when it found the input wrong, BambooError when it
    broke, or with `too_long` when it did not end by the deadline.
    """
    late = threading.Event()

    def give_up() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(deadline_s or 0.0, give_up)
    out: list[str] = []
    said: list[str] = []
    # Threads, so that a long text on one of the three streams blocks neither side, nor a stream
    # that another process keeps open.
    others = (
        threading.Thread(target=_ask, args=(process, request), daemon=True),
        threading.Thread(target=_hear, args=(process, out), daemon=True),
        threading.Thread(target=_listen, args=(process, told, works, said), daemon=True),
    )
    try:
        if deadline_s is not None:
            timer.start()
        for other in others:
            other.start()
        process.wait()
    finally:
        timer.cancel()
        status = process.end()
        for other in others:
            if other.ident is not None:
                other.join(LAST_WORDS_S)
    if late.is_set():
        raise BambooError(too_long)
    return _answer(status, "".join(out), said, what=what, good=good)


def _listen(
    process: Asked,
    told: Callable[[int, int], None] | None,
    works: Callable[[str], None] | None,
    other: list[str],
) -> None:
    """Collect what is not progress, and call `told` and `works` for progress, until the stream
    ends."""
    with process.stderr as lines:
        for line in lines:
            match _progress(line):
                case (step, steps):
                    if told is not None:
                        told(step, steps)
                case str(work):
                    if works is not None:
                        works(work)
                case _:
                    other.append(line)


def _progress(line: str) -> tuple[int, int] | str | None:
    """(step, steps), or what is worked on, of a line of progress; None for anything else that the
    user's model prints."""
    try:
        record = json.loads(line)
        if record.keys() == {"work"}:
            return str(record["work"])
        return int(record["step"]), int(record["steps"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _ask(process: Asked, request: str) -> None:
    # It may have ended, and its status says why.
    with contextlib.suppress(BrokenPipeError), process.stdin as asked:
        asked.write(request)


def _hear(process: Asked, out: list[str]) -> None:
    """Read the answer, which is one line. The stream is read to its end all the same: a process
    that can no longer write its answer would end itself, and other processes may hold the stream
    too."""
    with process.stdout as text:
        out.append(text.readline())
        while text.read(4096):
            pass


def _answer(
    status: int, out: str, other: list[str], *, what: str, good: tuple[int, ...]
) -> dict[str, Any]:
    if status in (*good, InputError.exit_code) and out.strip():
        body = _body(out)
        if body is None or (status == InputError.exit_code and "error" not in body):
            raise BambooError(
                f"{what} answered with {out.strip()[:SHOWN]!r}, which is no answer; see whether "
                "your code writes to descriptors that it has not opened"
            )
        if status == InputError.exit_code:
            raise InputError(str(body["error"]))
        return body
    if status == KILLED:
        raise BambooError(
            f"{what} was killed by SIGKILL, as Linux does when memory runs out; take a smaller "
            "model or train.microbatch, or a machine with more memory"
        )
    end = " | ".join("".join(other).strip().splitlines()[-3:]) or (
        "it said nothing; see whether your code ends its process (os._exit, a signal)"
    )
    raise BambooError(f"{what} ended with status {status}: {end}")


def _body(out: str) -> dict[str, Any] | None:
    """The object of an answer; None: it is none, since the user's code can write there, too."""
    try:
        body = json.loads(out)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None
