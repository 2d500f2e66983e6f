"""The question before something that cannot be taken back."""

import sys

import click

from bamboo.errors import InputError


def agreed(question: str, *, yes: bool) -> bool:
    """Whether the person at the terminal agrees. With `yes` nobody is asked. Raises InputError
    where nobody is at the terminal."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise InputError("there is nobody to ask; --yes goes on without asking")
    return click.confirm(question, err=True)
