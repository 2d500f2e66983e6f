"""A progress bar on standard error.

Rule: the bar disappears when the work is done, and it is drawn only on a terminal.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from cli.echo import progress_is_hidden

Told = Callable[[int, int], None]
"""A callback that takes (done, of all)."""
Bar = Callable[[str], AbstractContextManager[Told]]
"""Given the name of some work, opens its progress callback."""


@contextmanager
def bar(what: str) -> Iterator[Told]:
    """Show a bar for this work."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    hidden = progress_is_hidden()
    with Progress(*columns, console=console, transient=True, disable=hidden) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda done, of_all: drawn.update(task, completed=done, total=of_all)


@contextmanager
def no_bar(what: str) -> Iterator[Told]:
    """The bar of a caller that shows no progress."""
    del what
    yield lambda done, of_all: None
