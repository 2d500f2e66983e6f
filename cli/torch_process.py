"""Processes with torch: each is asked one thing, may tell how far it is, and gives one answer.

Rule: torch is never imported here. What is asked goes to standard input, the answer is one JSON
object on standard output, progress are JSON lines on standard error; no child is left behind.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any

from bamboo.errors import BambooError, InputError
from bamboo.loading import steady_environment

KILLED = -9


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
    )
    late = threading.Event()

    def give_up() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(deadline_s or 0.0, give_up)
    out: list[str] = []
    # Threads, so that nobody waits for a reader, whichever of the three texts is long.
    others = (
        threading.Thread(target=_ask, args=(process, request), daemon=True),
        threading.Thread(target=_hear, args=(process, out), daemon=True),
    )
    try:
        if deadline_s is not None:
            timer.start()
        for other in others:
            other.start()
        assert process.stderr is not None
        said = _listen(process.stderr, told)
        process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            process.kill()  # leave no child behind, whatever ended the wait for it
            process.wait()
        for other in others:
            if other.ident is not None:
                other.join()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # of a request that was not all read
                    pipe.close()
    if late.is_set():
        raise BambooError(too_long)
    return _answer(process.returncode, "".join(out), said, what=what, good=good)


def command(module: Sequence[str]) -> list[str]:
    """The command line that runs a module with its arguments."""
    return [sys.executable, "-P", "-m", "bamboo.loading", *module]


def _listen(lines: IO[str], told: Callable[[int, int], None] | None) -> list[str]:
    """All that is no progress, which `told` hears, when the process has closed the pipe."""
    other: list[str] = []
    for line in lines:
        step = _step_told(line)
        if step is None:
            other.append(line)
        elif told is not None:
            told(*step)
    return other


def _step_told(line: str) -> tuple[int, int] | None:
    """(step, steps) of a line of progress; None for what else the user's model prints."""
    try:
        record = json.loads(line)
        return int(record["step"]), int(record["steps"])
    except (ValueError, KeyError, TypeError):
        return None


def _ask(process: "subprocess.Popen[str]", request: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, and its status says why
        process.stdin.write(request)
        process.stdin.close()


def _hear(process: "subprocess.Popen[str]", out: list[str]) -> None:
    assert process.stdout is not None
    out.append(process.stdout.read())


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
