"""A bar of progress on standard error, while somebody looks at it.

Rule: it is gone when the work is done, and where nobody looks nothing is drawn.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from cli.echo import progress_is_hidden

Told = Callable[[int, int], None]
"""Is told (done, of all)."""
Bar = Callable[[str], AbstractContextManager[Told]]
"""Gives what is to be told of some work, named in words."""


@contextmanager
def bar(what: str) -> Iterator[Told]:
    """A bar for this work."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    hidden = progress_is_hidden()
    with Progress(*columns, console=console, transient=True, disable=hidden) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda done, of_all: drawn.update(task, completed=done, total=of_all)


@contextmanager
def no_bar(what: str) -> Iterator[Told]:
    """For who shows no progress."""
    del what
    yield lambda done, of_all: None
