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
import threading
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import FrameType
from typing import Any, Protocol

from bamboo.user_code import environment
from bamboo.user_code.local import (
    is_local,
    looking_frame,
    not_watching,
    thread_begins,
    unwatched,
    user_frame,
)

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_FOLDERS = ("os.listdir", "os.scandir")
_LOADED = ("sqlite3.connect", "ctypes.dlopen")
_HEARD = frozenset({"open", "os.rename", *_FOLDERS, *_LOADED})
_DESCRIPTORS = "/proc/self/fd"


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
        whether and what it is; or, examined, what it is to be. Raises FileNotFoundError for what is
        not to be there."""

    def moved_folder(self, path: Any, frame: FrameType) -> Any:
        """The folder to list in place of this one, given as it is."""

    def renamed(self, path: str, to: str) -> None:
        """A file or folder gets another name."""

    def entered(self, path: Any, frame: FrameType) -> Any:
        """The folder to make the working directory in place of this one. Raises FileNotFoundError
        for what is not to be there."""

    def made_folder(self, path: Any, *, anew: bool) -> bool:
        """A folder was made, or was there already; whether the second is as good as the first."""

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
    builtins.open = io.open = _asking(builtins.open, "file", _opening)
    hooks: dict[str, Move] = {
        "open": _opening,
        **dict.fromkeys(("stat", "lstat", "readlink", "access"), _examining),
        **dict.fromkeys(("listdir", "scandir"), _listing),
        "chdir": _entering,
    }
    able = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks)
    for name, move in hooks.items():
        plain = getattr(os, name)
        asking = _asking(plain, "path", move)
        for calls in (*able, os.supports_effective_ids):
            if plain in calls:
                calls.add(asking)
        setattr(os, name, asking)
    os.mkdir = _telling_folder(os.mkdir)
    os.getcwd = _asking_folder(os.getcwd)
    threads: Any = threading.Thread
    threads.start = _telling_thread(threads.start)
    # What loads a module by its path reads it without asking for the path again.
    kind: Any = next(one for one in SourceFileLoader.__mro__ if "__init__" in vars(one))
    kind.__init__ = _asking_loader(kind.__init__)


def _saw(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _HEARD or _listener is None:
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
    elif event == "os.rename":
        listener.renamed(full, os.path.abspath(os.fsdecode(arguments[1])))
    elif event in _FOLDERS:
        # An import looks through folders, and what it finds is asked about elsewhere.
        if not sys._getframe(2).f_code.co_filename.startswith("<frozen importlib"):
            listener.listed_folder(full, frame)
    else:
        listener.loaded(full, frame)


Move = Callable[[Listener, Any, FrameType], Any]
"""What to take in place of a path; the frame is the caller's."""


def _opening(listener: Listener, path: Any, frame: FrameType) -> Any:
    user = user_frame(frame)
    return path if user is None else listener.moved(path, examined=False, frame=user)


def _examining(listener: Listener, path: Any, frame: FrameType) -> Any:
    user = looking_frame(frame)
    if user is not None:
        return listener.moved(path, examined=True, frame=user)
    # A library looks, perhaps at what it is to open for the user.
    return _opening(listener, path, frame)


def _listing(listener: Listener, path: Any, frame: FrameType) -> Any:
    user = user_frame(frame)
    return path if user is None else listener.moved_folder(path, user)


def _entering(listener: Listener, path: Any, frame: FrameType) -> Any:
    user = user_frame(frame)
    return path if user is None else listener.entered(path, user)


def _asking(call: Callable[..., Any], keyword: str, move: Move) -> Callable[..., Any]:
    @functools.wraps(call)
    def at_its_place(*arguments: Any, **named: Any) -> Any:
        path = arguments[0] if arguments else named.get(keyword)
        if path is None and move is _listing:
            path = os.curdir
        if _listener is None or unwatched() or not isinstance(path, str | bytes | os.PathLike):
            return call(*arguments, **named)
        with not_watching():
            beside = named.get("dir_fd")
            if beside is not None and user_frame(sys._getframe(1)) is not None:
                path, named["dir_fd"] = _of_descriptor(beside, path)
            if named.get("dir_fd") is None:
                try:
                    path = move(_listener, path, sys._getframe(1))
                except FileNotFoundError:
                    if call.__name__ == "access":
                        return False
                    raise
        if isinstance(path, os.stat_result):
            return _looked(call, path, *arguments, **named)
        if arguments:
            return call(path, *arguments[1:], **named)
        return call(**{**named, keyword: path})

    return at_its_place


def _telling_thread(call: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(call)
    def start(thread: threading.Thread) -> None:
        if _listener is not None:
            with not_watching():
                thread_begins(thread, sys._getframe(1))
        call(thread)

    return start


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


def _looked(call: Callable[..., Any], was: os.stat_result, *arguments: Any, **named: Any) -> Any:
    """What a call finds out of a path that was so at launch; where a link leads is told by the link
    that is there, if it is."""
    if call.__name__ == "access":
        return True
    if call.__name__ == "stat" and named.get("follow_symlinks", True):
        return was
    try:
        return call(*arguments, **named)
    except FileNotFoundError:
        if call.__name__ == "readlink":
            raise
        return was


def _of_descriptor(folder: int, path: Any) -> tuple[Any, int | None]:
    """(Absolute path, None) of a path beside an open folder; as it is where nobody can tell."""
    try:
        return os.path.join(os.readlink(f"{_DESCRIPTORS}/{folder}"), os.fsdecode(path)), None
    except OSError:
        return path, folder


def _asking_loader(plain: Callable[[Any, str, str], None]) -> Callable[[Any, str, str], None]:
    @functools.wraps(plain)
    def made(self: Any, fullname: str, path: str) -> None:
        if _listener is not None and not unwatched() and isinstance(path, str):
            with not_watching():
                path = _opening(_listener, path, sys._getframe(1))
        plain(self, fullname, path)

    return made


def _asking_folder(call: Callable[[], str]) -> Callable[[], str]:
    @functools.wraps(call)
    def working_folder() -> str:
        if _listener is None or unwatched():
            return call()
        with not_watching():
            of_user = looking_frame(sys._getframe(1)) is not None
        return _listener.working_folder(call()) if of_user else call()

    return working_folder
