"""Printing to a full disk, or to a reader that has gone.

Rules: a line of progress, or the last error, may then be lost or delayed, but nothing else happens,
since the run must not depend on it. The result of a command is not lost silently, unless its reader
has gone, as in `bamboo launch JOB | head`.
"""

import errno
import os
import shutil
import sys
from traceback import walk_tb

import click

from bamboo.errors import InputError
from bamboo.jsonl import DISK_FULL
from cli.printable import printable


def open_closed() -> None:
    """Open the null device for each standard stream that was closed when this process began.
    Otherwise the first file that is opened gets its number, and receives what is printed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == descriptor, "the lowest number that is free"
            os.set_inheritable(descriptor, True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def echo(text: str, *, err: bool = False, nl: bool = True, over: bool = False) -> None:
    """Print progress as `click.echo` does, but survive a full disk and a reader that has gone, and
    escape what could control a terminal. `over` replaces the line before, which had no end."""
    try:
        click.echo(("\r" if over else "") + printable(text), err=err, nl=nl)
    except OSError as error:
        if error.errno == errno.EPIPE:
            _read_by_nobody((sys.stderr if err else sys.stdout).fileno())
        elif error.errno not in DISK_FULL:
            raise


def note(text: str) -> None:
    """A line of progress for a person, whatever standard output is used for."""
    echo(text, err=True)


def echo_result(text: str | bytes) -> None:
    """Print the result of a command. Raises InputError where it cannot be written."""
    try:
        click.echo(printable(text) if isinstance(text, str) else text, nl=isinstance(text, str))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        _read_by_nobody(sys.stdout.fileno())
        raise _refused(error) from error


def refused_by_output(error: OSError) -> InputError | None:
    """The error to report for an OSError of printing, including what click prints itself; None for
    any other error."""
    printed = any(f.f_code is click.echo.__code__ for f, _ in walk_tb(error.__traceback__))
    if not printed or error.errno not in DISK_FULL:
        return None
    _read_by_nobody(sys.stdout.fileno())
    return _refused(error)


def _refused(error: OSError) -> InputError:
    return InputError(
        f"standard output cannot be written: {error.strerror}; make room there, or send it "
        "elsewhere"
    )


def _read_by_nobody(descriptor: int) -> None:
    """Discard what is written there from now on. Otherwise what is buffered would fail again
    when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def terminal_width() -> int | None:
    """Columns of the terminal at standard output; None where it is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def progress_is_hidden() -> bool:
    """Whether standard error is not a terminal."""
    # It is None in a process that was started without standard error.
    return sys.stderr is None or not sys.stderr.isatty()
