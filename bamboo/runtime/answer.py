"""Standard output kept for a program's one answer, where code of the user's runs beside it.

Rule: whatever else is printed, by Python or below it, goes to standard error.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

from bamboo.errors import InputError, VerifyDiffers


@contextmanager
def one_answer() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Gives what writes the answer: one JSON object, one line."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr), os.fdopen(kept, "w", closefd=False) as output:

            def answer(body: Mapping[str, Any]) -> None:
                output.write(json.dumps(body) + "\n")
                output.flush()

            yield answer
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def tell_progress(step: int, steps: int, loss: float | None = None) -> None:
    """One JSON line on standard error: so far it is."""
    told = {"step": step, "steps": steps} | ({} if loss is None else {"loss": loss})
    sys.stderr.write(json.dumps(told) + "\n")
    sys.stderr.flush()


def answer_equal(compare: Callable[[], Mapping[str, Any]]) -> int:
    """Answer with what a comparison found, or with why there was nothing to compare; the exit code:
    0 equal, 5 different, 2 not comparable."""
    with one_answer() as answer:
        try:
            result = compare()
        except InputError as error:
            answer({"error": str(error)})
            return error.exit_code
        answer(result)
    return 0 if result["equal"] else VerifyDiffers.exit_code
