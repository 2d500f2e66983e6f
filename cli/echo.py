"""Printing to a file on a full disk, or to nobody.

Rule: a line of progress, or the last error, is lost then, or comes later, and that is all: the run
must not depend on it. What a command was asked for is not lost in silence, but where its reader has
gone, as that of `bamboo launch JOB | head` does.
"""

import errno
import os
import shutil
import sys

import click

from bamboo.errors import InputError
from bamboo.lines import DISK_FULL


def echo(text: str, *, err: bool = False) -> None:
    """Progress: `click.echo`, but for a full disk and for a reader that has gone."""
    try:
        click.echo(text, err=err)
    except OSError as error:
        if error.errno == errno.EPIPE:
            _read_by_nobody((sys.stderr if err else sys.stdout).fileno())
        elif error.errno not in DISK_FULL:
            raise


def echo_result(text: str | bytes) -> None:
    """What was asked for. Raises InputError where it cannot be written."""
    try:
        click.echo(text, nl=isinstance(text, str))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise InputError(
            f"standard output cannot be written: {error.strerror}; make room there, or send it "
            "elsewhere"
        ) from error


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
    """Whether nobody looks at standard error, or it is closed."""
    return sys.stderr is None or not sys.stderr.isatty()
