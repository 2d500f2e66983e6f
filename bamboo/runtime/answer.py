"""Standard output kept for a program's one answer, where code of the user's runs beside it.

Rule: whatever else is printed, by Python or below it, goes to standard error.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any


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
