"""Environment variables that the user's code reads: seen at launch, and given to every worker as
they were then.

Rule: only what the user's own lines read counts, not what a library reads for itself. A value is
kept with the run's code, readable by its owner alone; its digest is in the run's identity.
"""

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from bamboo.user_code.local import looking_frame


class Reader(Protocol):
    """What is asked before the user's code reads of the environment."""

    def read(self, name: str, value: str | None, frame: FrameType) -> str | None:
        """The value to give for a variable that has this one here; None: it is not set."""

    def wrote(self, name: str) -> None:
        """The user's code sets this variable: from now on it reads what it set."""

    def listed(self, frame: FrameType) -> None:
        """The names of all variables are asked for."""


def ask(reader: Reader | None) -> None:
    """From now on this one is asked; None: nobody."""
    global _reader
    _reader = reader
    if not _patched and reader is not None:
        _patch()


_reader: Reader | None = None
_patched = False


def _patch() -> None:
    """`os.environ` has one class for text and bytes, and all ways to a value lead through it."""
    global _patched
    _patched = True
    kind: Any = type(os.environ)
    kind.__getitem__ = _asking_item(kind.__getitem__)
    kind.__setitem__ = _telling(kind.__setitem__)
    kind.__delitem__ = _removing(kind.__delitem__)
    kind.__iter__ = _asking_names(kind.__iter__)


def _asking_item(plain: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(plain)
    def item(self: Any, name: Any) -> Any:
        frame = None if _reader is None else looking_frame(sys._getframe(1))
        if _reader is None or frame is None or not isinstance(name, str | bytes):
            return plain(self, name)
        try:
            here = os.fsdecode(plain(self, name))
        except KeyError:
            here = None
        value = _reader.read(os.fsdecode(name), here, frame)
        if value is None:
            raise KeyError(name)
        return os.fsencode(value) if isinstance(name, bytes) else value

    return item


def _telling(plain: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    @functools.wraps(plain)
    def set_item(self: Any, name: Any, value: Any) -> None:
        if _reader is not None and looking_frame(sys._getframe(1)) is not None:
            _reader.wrote(os.fsdecode(name))
        plain(self, name, value)

    return set_item


def _removing(plain: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @functools.wraps(plain)
    def remove(self: Any, name: Any) -> None:
        frame = None if _reader is None else looking_frame(sys._getframe(1))
        if _reader is None or frame is None:
            plain(self, name)
            return
        # A variable that was set at launch alone is there for the user's code.
        here = self._data.get(self.encodekey(name))
        value = _reader.read(os.fsdecode(name), None if here is None else os.fsdecode(here), frame)
        _reader.wrote(os.fsdecode(name))
        if here is not None:
            plain(self, name)
        elif value is None:
            raise KeyError(name)

    return remove


def _asking_names(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(plain)
    def names(self: Any) -> Any:
        frame = None if _reader is None else looking_frame(sys._getframe(1))
        if _reader is not None and frame is not None:
            _reader.listed(frame)
        return plain(self)

    return names
