"""Keeps standard output for a program's one answer while the user's code runs in the same process.

Rule: whatever else is printed, by Python or below it, goes to standard error. A program whose
answer nobody can read any more ends, because the process that asked for it is gone.
"""

import json
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from bamboo.errors import InputError, VerifyDiffers


@contextmanager
def one_answer(room: Path | None = None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Gives a function that writes the answer: one JSON object on one line. `room`: a folder that
    the asker removes, and that is removed here when the asker is gone."""
    sys.stdout.flush()
    kept, over = os.dup(1), threading.Event()
    threading.Thread(target=_end_unread, args=(kept, over, room), daemon=True).start()
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr), os.fdopen(kept, "w", closefd=False) as output:

            def answer(body: Mapping[str, Any]) -> None:
                output.write(json.dumps(body) + "\n")
                output.flush()

            yield answer
    finally:
        over.set()
        os.dup2(kept, 1)
        os.close(kept)


def _end_unread(output: int, over: threading.Event, room: Path | None) -> None:
    """End this process when the other end of its output is closed, which never happens to a file;
    but not once the answer is `over`."""
    poller = select.poll()
    poller.register(output, 0)
    if any(event & select.POLLERR for _, event in poller.poll()) and not over.is_set():
        if room is not None:
            shutil.rmtree(room, ignore_errors=True)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with every process that the user's code has started
        os._exit(1)


def tell_progress(step: int, steps: int, loss: float | None = None) -> None:
    """Report progress as one JSON line on standard error."""
    told = {"step": step, "steps": steps} | ({} if loss is None else {"loss": loss})
    sys.stderr.write(json.dumps(told) + "\n")
    sys.stderr.flush()


def tell_work(what: str) -> None:
    """Say what is worked on from now on, as one JSON line on standard error."""
    sys.stderr.write(json.dumps({"work": what}) + "\n")
    sys.stderr.flush()


def answer_equal(compare: Callable[[], Mapping[str, Any]]) -> int:
    """Answer with the result of a comparison, or with why there was nothing to compare. Returns the
    exit code: 0 equal, 5 different, 2 not comparable."""
    with one_answer() as answer:
        try:
            result = compare()
        except InputError as error:
            answer({"error": str(error)})
            return error.exit_code
        answer(result)
    return 0 if result["equal"] else VerifyDiffers.exit_code
