"""A progress bar on standard error.

Rule: the bar disappears when the work is done, and it is drawn only on a terminal.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from bamboo.ports import Told
from cli.echo import progress_is_hidden


@contextmanager
def bar(what: str) -> Iterator[Told]:
    """Show a bar for this work."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    hidden = progress_is_hidden()
    with Progress(*columns, console=console, transient=True, disable=hidden) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda done, of_all: drawn.update(task, completed=done, total=of_all)
