"""Options of a benchmark: wrong ones are rejected before anything is played."""

import math
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from bamboo.errors import InputError
from bamboo.sim.market.trace import read_trace


def parsed(parser: ArgumentParser, given: Sequence[str] | None = None) -> Namespace:
    """The parsed options, by default from the command line. From now on SIGTERM ends what the
    process started, as Ctrl-C does."""
    arguments = parser.parse_args(given)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return arguments


def selected(parser: ArgumentParser, arguments: Namespace, *names: str) -> list[str]:
    """The values of these options that differ from their defaults, for a result's name."""
    values = [
        getattr(arguments, x) for x in names if getattr(arguments, x) != parser.get_default(x)
    ]
    return [",".join(map(str, x)) if isinstance(x, list) else str(x) for x in values]


def chosen(parser: ArgumentParser, what: str, words: str, there: Collection[str]) -> list[str]:
    """Names out of `there`, comma separated; the parser exits with an error about a wrong one."""
    names = words.split(",")
    if unknown := [name for name in names if name not in there]:
        parser.error(f"there is no {what} {unknown[0]!r}; there are {', '.join(there)}")
    return names


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number."""

    def read(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text!r}: give a whole number, {least} at least")
        return int(text)

    return read


def more_than_zero(text: str) -> float:
    """The type of an option that is a time, or another length."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise ArgumentTypeError(f"{text!r}: give a number above 0")
    return found


def job_file(text: str) -> Path:
    """The type of an option that is a job: a readable file, whatever it contains."""
    try:
        Path(text).read_bytes()
    except OSError as error:
        raise ArgumentTypeError(
            f"{text}: {error.strerror}; name a job file that can be read"
        ) from None
    return Path(text)


def trace_file(text: str) -> Path:
    """The type of an option that is a recorded market: a file with a valid trace."""
    try:
        read_trace(Path(text))
    except InputError as error:
        raise ArgumentTypeError(str(error)) from None
    return Path(text)
