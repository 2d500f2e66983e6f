"""Starts Python processes of Bamboo and loads their modules without the cycle collector.

The collector would scan long-lived modules again and again, which is a quarter of the time that
torch or the mock cloud takes to load. They are not scanned at the end of their process either,
which is a fifth of the time of a short command.

`python -P -m bamboo.loading MODULE ARGUMENT…` calls `MODULE.main` with the arguments; its result is
the exit status. All processes of Bamboo start this way, or as the script `bamboo`, so that they
find Bamboo's own packages (`own_packages`).
"""

import atexit
import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from bamboo.own_packages import find_own

if TYPE_CHECKING:
    import subprocess

_OUTLIVING: set[int] = set()
"""Process ids of children that nobody waits for."""


@contextmanager
def for_good() -> Iterator[None]:
    """The collector never scans what is loaded in this block, then or later. A fork of this process
    therefore keeps sharing its pages."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def steady_environment(of: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a process that runs a user's model: `of`, by default this process's, with
    a fixed hash seed, so that a set of names has one order on every node and in `verify`."""
    return {**of, "PYTHONHASHSEED": "0"}


def until_the_end() -> None:
    """Leave the objects of this process to the kernel at its end, without a last collection of
    cycles. So data that must be written is written by an explicit close, never by the collector."""
    atexit.register(gc.freeze)


def interpreter(module: str, *arguments: str, flags: Sequence[str] = ("-P",)) -> list[str]:
    """The command line that runs a module of Bamboo in a new interpreter; `-P` keeps a user's files
    in the working directory from taking the names of our packages."""
    return [sys.executable, *flags, "-m", "bamboo.loading", module, *arguments]


def let_outlive(process: "subprocess.Popen[bytes]") -> None:
    """Wait no more for a child that is meant to outlive this process. Where earlier ones have ended
    all the same, their exit statuses are taken, so that a long program keeps no zombie of each."""
    for pid in tuple(_OUTLIVING):
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # this process is a fork of their parent
            ended = pid
        if ended:
            _OUTLIVING.discard(pid)
    process.returncode = 0  # otherwise its end is waited for, or warned about
    _OUTLIVING.add(process.pid)


def script() -> int:
    """Entry point of the script `bamboo`."""
    try:
        return main(["cli.main", *sys.argv[1:]])
    except KeyboardInterrupt:  # before the command line was loaded, which answers it from then on
        sys.stderr.write("error: interrupted\n")
        return 130


def main(arguments: list[str]) -> int:
    """Run the module that the arguments name; see the top of the file."""
    find_own()
    until_the_end()
    with for_good():
        module = importlib.import_module(arguments[0])
    status: int = module.main(arguments[1:])
    return status


def _run_and_leave() -> None:
    """Run a module and end this interpreter, whichever threads the user's code has begun: Python
    waits for each that is no daemon, and Bamboo's own all are."""
    status = 1
    try:
        status = main(sys.argv[1:])
    finally:
        error = sys.exception()
        if error is None or isinstance(error, Exception):
            _leave(status, error)


def _leave(status: int, error: Exception | None) -> NoReturn:
    if error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or none
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    _run_and_leave()
