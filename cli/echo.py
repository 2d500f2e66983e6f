"""Printing a line of progress, or the last error: whoever reads it, the run must not depend on it.

Rule: where the output is a file on a full disk the line is lost, or comes later, and that is all.
"""

import click

from bamboo.lines import DISK_FULL


def echo(text: str, *, err: bool = False) -> None:
    """`click.echo`, but for a full disk."""
    try:
        click.echo(text, err=err)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
