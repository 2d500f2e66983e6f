"""Modules that stay loaded are loaded without the collector of cycles, which would look through all
of them again and again: a quarter of the time that torch or the mock cloud takes.

`python -P -m bamboo.loading MODULE ARGUMENT…` calls `MODULE.main` with the arguments; its result is
the exit status.
"""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def for_good() -> Iterator[None]:
    """What is loaded in this block is never looked through, then or later: a fork of this process
    keeps sharing its pages, too."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main(arguments: list[str]) -> int:
    """The command; see the top of the file."""
    with for_good():
        module = importlib.import_module(arguments[0])
    status: int = module.main(arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
