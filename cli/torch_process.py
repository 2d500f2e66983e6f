"""Processes with torch: each is asked one thing, may tell how far it is, and gives one answer.

Rule: torch is never imported here. What is asked goes to standard input, the answer is one JSON
object on standard output, progress are JSON lines on standard error; no child is left behind.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from bamboo.errors import BambooError, InputError
from bamboo.loading import steady_environment

KILLED = -9
LAST_WORDS_S = 5.0
"""So long what a process has said is waited for, once it has ended."""


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
    """Run a module with its arguments. `told` is called with (step, steps); `good` are the exit
    codes that come with an answer.

    Raises InputError with the process's own line when it found the input wrong, BambooError when
    it broke, or with `too_long` when it was not over by the deadline.
    """
    process = subprocess.Popen(
        command(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=steady_environment(),
        process_group=0,
    )
    late = threading.Event()

    def give_up() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(deadline_s or 0.0, give_up)
    out: list[str] = []
    said: list[str] = []
    # Threads, so that nobody waits for a reader, whichever of the three texts is long; nor for the
    # end of a text that some other process keeps open.
    others = (
        threading.Thread(target=_ask, args=(process, request), daemon=True),
        threading.Thread(target=_hear, args=(process, out), daemon=True),
        threading.Thread(target=_listen, args=(process, told, said), daemon=True),
    )
    try:
        if deadline_s is not None:
            timer.start()
        for other in others:
            other.start()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    finally:
        timer.cancel()
        _end_group(process)
        for other in others:
            if other.ident is not None:
                other.join(LAST_WORDS_S)
    if late.is_set():
        raise BambooError(too_long)
    return _answer(process.returncode, "".join(out), said, what=what, good=good)


def command(module: Sequence[str]) -> list[str]:
    """The command line that runs a module with its arguments."""
    return [sys.executable, "-P", "-m", "bamboo.loading", *module]


def _end_group(process: "subprocess.Popen[str]") -> None:
    """Leave no child behind, whatever ended the wait for it, and none that the user's code began:
    those too hold what it writes to."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # before its number can be another one's
    process.wait()


def _listen(
    process: "subprocess.Popen[str]", told: Callable[[int, int], None] | None, other: list[str]
) -> None:
    """All that is no progress, which `told` hears, until nobody can write any more."""
    assert process.stderr is not None
    with process.stderr as lines:
        for line in lines:
            step = _step_told(line)
            if step is None:
                other.append(line)
            elif told is not None:
                told(*step)


def _step_told(line: str) -> tuple[int, int] | None:
    """(step, steps) of a line of progress; None for what else the user's model prints."""
    try:
        record = json.loads(line)
        return int(record["step"]), int(record["steps"])
    except (ValueError, KeyError, TypeError):
        return None


def _ask(process: "subprocess.Popen[str]", request: str) -> None:
    assert process.stdin is not None
    # It may have ended, and its status says why.
    with contextlib.suppress(BrokenPipeError), process.stdin as asked:
        asked.write(request)


def _hear(process: "subprocess.Popen[str]", out: list[str]) -> None:
    assert process.stdout is not None
    with process.stdout as text:
        out.append(text.read())


def _answer(
    status: int, out: str, other: list[str], *, what: str, good: tuple[int, ...]
) -> dict[str, Any]:
    if status in (*good, InputError.exit_code) and out.strip():
        body: dict[str, Any] = json.loads(out)
        if status == InputError.exit_code:
            raise InputError(str(body["error"]))
        return body
    if status == KILLED:
        raise BambooError(
            f"{what} was killed by SIGKILL, as Linux does when memory runs out; take a smaller "
            "model or train.microbatch, or a machine with more memory"
        )
    end = " | ".join("".join(other).strip().splitlines()[-3:]) or (
        "it said nothing; see whether the model's file ends its process (os._exit, a signal)"
    )
    raise BambooError(f"{what} ended with status {status}: {end}")
