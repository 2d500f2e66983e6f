"""Printing to a file on a full disk, or to nobody.

Rules: a line of progress, or the last error, is lost then, or comes later, and that is all: the run
must not depend on it. What a command was asked for is not lost in silence, but where its reader has
gone, as that of `bamboo launch JOB | head` does.
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
    """Let what was closed before this process began lead nowhere: else the first file that is
    opened takes its number, and gets what is printed."""
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
    """Progress: `click.echo`, but for a full disk, for a reader that has gone, and for what could
    steer a terminal; `over`: in place of the line before, which had no end."""
    try:
        click.echo(("\r" if over else "") + printable(text), err=err, nl=nl)
    except OSError as error:
        if error.errno == errno.EPIPE:
            _read_by_nobody((sys.stderr if err else sys.stdout).fileno())
        elif error.errno not in DISK_FULL:
            raise


def note(text: str) -> None:
    """A line of progress for a person, whatever standard output is for."""
    echo(text, err=True)


def echo_result(text: str | bytes) -> None:
    """What was asked for. Raises InputError where it cannot be written."""
    try:
        click.echo(printable(text) if isinstance(text, str) else text, nl=isinstance(text, str))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        _read_by_nobody(sys.stdout.fileno())
        raise _refused(error) from error


def refused_by_output(error: OSError) -> InputError | None:
    """What to say of an error that came of printing, be it what click prints by itself; None for
    any other."""
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
    """From now on what goes there goes nowhere: else what is buffered would fail once more when the
    process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def progress_is_hidden() -> bool:
    """Whether nobody looks at standard error."""
    # A process that was started without one has None there.
    return sys.stderr is None or not sys.stderr.isatty()
