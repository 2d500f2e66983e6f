"""Printing a line of progress, or the last error: whoever reads it, the run must not depend on it.

Rule: where the output is a file on a full disk the line is lost, or comes later, and that is all.
"""

import errno

import click

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def echo(text: str, *, err: bool = False) -> None:
    """`click.echo`, but for a full disk."""
    try:
        click.echo(text, err=err)
    except OSError as error:
        if error.errno not in _FULL:
            raise
