"""Progress of a long piece of work, as callbacks: the caller decides how to show it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from bamboo.ports import Told


def silent(text: str) -> None:
    """The note of a caller that shows none."""
    del text


Bar = Callable[[str], AbstractContextManager[Told]]
"""Given the name of some work, opens its progress callback."""


@contextmanager
def no_bar(what: str) -> Iterator[Told]:
    """The bar of a caller that shows no progress."""
    del what
    yield lambda done, of_all: None
