"""Modules that stay loaded are loaded without the collector of cycles, which would look through all
of them again and again: a quarter of the time that torch or the mock cloud takes. Nor are they
looked through when their process ends: a fifth of the time of a short command.

`python -P -m bamboo.loading MODULE ARGUMENT…` calls `MODULE.main` with the arguments; its result is
the exit status. All processes of Bamboo begin so, or as the script `bamboo`: so they find Bamboo's
own packages (`own_packages`).
"""

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bamboo.own_packages import find_own


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


def steady_environment(of: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For a process that runs a user's model: the environment `of`, by default this process's, but
    text hashes to the same numbers everywhere, so that a set of names has one order on every node
    and in `verify`."""
    return {**of, "PYTHONHASHSEED": "0"}


def until_the_end() -> None:
    """What this process has when it ends is left to the kernel without a last look for cycles in
    it. So what must be written is written by who closes it, never by the collector."""
    atexit.register(gc.freeze)


def interpreter(module: str, *arguments: str, flags: Sequence[str] = ("-P",)) -> list[str]:
    """The command line that runs a module of ours in a new interpreter; `-P` keeps a user's files
    in the working directory from taking the names of our packages."""
    return [sys.executable, *flags, "-m", "bamboo.loading", module, *arguments]


def script() -> int:
    """Entry point of the script `bamboo`."""
    return main(["cli.main", *sys.argv[1:]])


def main(arguments: list[str]) -> int:
    """The command; see the top of the file."""
    find_own()
    until_the_end()
    with for_good():
        module = importlib.import_module(arguments[0])
    status: int = module.main(arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
