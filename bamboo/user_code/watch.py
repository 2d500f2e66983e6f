"""How the user's code is watched: one listener hears of each file and folder that it looks at,
before it does.

Rule: only what the user's code does counts, told by the frames that lead to it. What works below
Python, as some libraries and every other process do, is not seen.
"""

import builtins
import functools
import io
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from bamboo.user_code import environment
from bamboo.user_code.local import is_local, looking_frame, not_watching, unwatched, user_frame

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_FOLDERS = ("os.listdir", "os.scandir")
_LOADED = ("sqlite3.connect", "ctypes.dlopen")


class Listener(environment.Reader, Protocol):
    """What is asked before the user's code does something. Paths are absolute and local."""

    def opened(self, path: str, flags: int, frame: FrameType) -> None:
        """A file is opened, with the flags of `os.open`."""

    def loaded(self, path: str, frame: FrameType) -> None:
        """A file is opened by something else than Python: a library, a database."""

    def listed_folder(self, path: str, frame: FrameType) -> None:
        """The names in a folder are asked for."""

    def moved(self, path: Any, *, examined: bool, frame: FrameType) -> Any:
        """The path to take in place of this one, given as it is; `examined`: it is only asked
        whether and what it is. Raises FileNotFoundError for what is not to be there."""

    def made_folder(self, path: Any, *, anew: bool) -> bool:
        """A folder was made, or (not `anew`) could not be, as it is there; whether that is as good
        as made."""

    def working_folder(self, here: str) -> str:
        """What the working directory is for the user's code."""


def listen(listener: Listener | None) -> None:
    """From now on this one is asked; None: nobody. In one process there is one at a time."""
    global _listener
    _listener = listener
    environment.ask(listener)
    if listener is not None and not _hooked:
        _hook()


_listener: Listener | None = None
_hooked = False


def _hook() -> None:
    """Hooks stay for as long as the process, so they are put in once."""
    global _hooked
    _hooked = True
    sys.addaudithook(_saw)
    builtins.open = io.open = _asking(builtins.open, "file", examines=False)
    for name, examines in (("open", False), ("stat", True), ("lstat", True), ("readlink", True)):
        plain = getattr(os, name)
        asking = _asking(plain, "path", examines=examines)
        for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if plain in able:
                able.add(asking)
        setattr(os, name, asking)
    os.mkdir = _telling_folder(os.mkdir)
    os.getcwd = _asking_folder(os.getcwd)


def _saw(event: str, arguments: tuple[Any, ...]) -> None:
    if _listener is None or (event != "open" and event not in _FOLDERS and event not in _LOADED):
        return
    if not unwatched():
        with not_watching():
            _tell(event, arguments, _listener)


def _tell(event: str, arguments: tuple[Any, ...], listener: Listener) -> None:
    path = arguments[0] if arguments[0] is not None else "."
    if not isinstance(path, str | bytes | os.PathLike):
        return
    full = os.path.abspath(os.fsdecode(path))
    frame = user_frame(sys._getframe(2)) if is_local(full) else None
    if frame is None:
        return
    if event == "open":
        listener.opened(full, int(arguments[2] or 0), frame)
    elif event in _FOLDERS:
        # An import looks through folders, and what it finds is asked about elsewhere.
        if not sys._getframe(2).f_code.co_filename.startswith("<frozen importlib"):
            listener.listed_folder(full, frame)
    else:
        listener.loaded(full, frame)


def _asking(call: Callable[..., Any], keyword: str, *, examines: bool) -> Callable[..., Any]:
    @functools.wraps(call)
    def at_its_place(*arguments: Any, **named: Any) -> Any:
        path = arguments[0] if arguments else named.get(keyword)
        if _listener is None or unwatched() or not isinstance(path, str | bytes | os.PathLike):
            return call(*arguments, **named)
        with not_watching():
            frame = (looking_frame if examines else user_frame)(sys._getframe(1))
            if frame is not None:
                path = _listener.moved(path, examined=examines, frame=frame)
        if arguments:
            return call(path, *arguments[1:], **named)
        return call(**{**named, keyword: path})

    return at_its_place


def _telling_folder(call: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(call)
    def mkdir(path: Any, *arguments: Any, **named: Any) -> None:
        with not_watching():
            of_user = _listener is not None and user_frame(sys._getframe(1)) is not None
        if _listener is None or unwatched() or not of_user:
            call(path, *arguments, **named)
            return
        try:
            call(path, *arguments, **named)
        except FileExistsError:
            with not_watching():
                is_good = _listener.made_folder(path, anew=False)
            if not is_good:
                raise
        else:
            with not_watching():
                _listener.made_folder(path, anew=True)

    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if call in able:
            able.add(mkdir)
    return mkdir


def _asking_folder(call: Callable[[], str]) -> Callable[[], str]:
    @functools.wraps(call)
    def working_folder() -> str:
        if _listener is None or unwatched():
            return call()
        with not_watching():
            of_user = looking_frame(sys._getframe(1)) is not None
        return _listener.working_folder(call()) if of_user else call()

    return working_folder
