"""Which files are the user's own: neither Python's library, nor installed, nor Bamboo itself.

A package that is installed as editable lies outside of site-packages, so it counts as local. Data
that a job names lie where they are, so no file below them is the user's code unless it is a module.
"""

import contextlib
import functools
import os
import site
import sys
import sysconfig
import threading
import weakref
from collections.abc import Iterator
from importlib.machinery import all_suffixes
from pathlib import Path
from types import FrameType

_PACKAGES = Path(__file__).resolve().parents[2]
OWN_FOLDERS = tuple(str(_PACKAGES / name) + os.sep for name in ("bamboo", "cloud", "cli"))
"""Where Bamboo's packages lie; its release is part of a run's identity by itself."""
_SYSTEM = ("/proc/", "/sys/", "/dev/")
_MODULES = tuple(all_suffixes())
"""How files end that can be imported."""


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    found |= {*site.getsitepackages(), site.getusersitepackages()}
    # Of an interpreter in a venv the library lies with the one that it was made of.
    found |= {os.path.realpath(path) for path in found}
    return tuple(sorted(path.rstrip(os.sep) + os.sep for path in found))


def count_as_installed(folder: Path) -> None:
    """From now on what lies in this folder is installed, like what is in site-packages."""
    _also_installed.update({os.path.realpath(folder) + os.sep, os.path.normpath(folder) + os.sep})
    is_local.cache_clear()


_also_installed: set[str] = set()


class _Here(threading.local):
    asking = False


_here = _Here()


def unwatched() -> bool:
    """Whether this thread looks at files for Bamboo itself: that is nothing of the user's."""
    return _here.asking


@contextlib.contextmanager
def not_watching() -> Iterator[None]:
    """In this block the thread looks at files for Bamboo itself."""
    before, _here.asking = _here.asking, True
    try:
        yield
    finally:
        _here.asking = before


_data = ""
"""The folder or file of the job's data, with a separator behind it; empty: there is none."""


def leave_data(path: Path | None) -> None:
    """From now on what lies at this path are data: no run takes them along, and code may read them
    at any time."""
    global _data
    _data = "" if path is None else os.path.realpath(path) + os.sep
    is_local.cache_clear()


@functools.lru_cache(maxsize=65536)
def is_local(path: str) -> bool:
    """Whether an absolute path is a file of the user's."""
    if not os.path.isabs(path):
        return False
    others = (*OWN_FOLDERS, *_SYSTEM, *_installed_folders(), *_also_installed)
    # A library of a thousand files is imported in a second, and following links takes another one.
    if os.path.normpath(path).startswith(others):
        return False
    with not_watching():
        real = os.path.realpath(path)
        interpreter = os.path.realpath(sys.executable)
    if real.startswith(others):
        return False
    if _data and (real + os.sep).startswith(_data) and not real.endswith(_MODULES):
        return False
    compiled = os.sep + "__pycache__" + os.sep in real  # what it is compiled from counts
    return not compiled and real != interpreter


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's code on this stack, before the first of Bamboo's: that one
    called the user's code. In a thread that neither Bamboo began nor a library for it, say of a
    pool of the user's, all that runs is the user's doing: the outermost frame. None: no user's code
    runs here."""
    last = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OWN_FOLDERS) and name not in _WATCHING:
            return None
        if is_local(name):
            return frame
        last, frame = frame, frame.f_back
    here = threading.current_thread()
    return None if here is threading.main_thread() or here in _for_bamboo else last


def thread_begins(thread: threading.Thread, frame: FrameType | None) -> None:
    """Hear that a thread is begun from this frame. One that a library begins for Bamboo, such as
    those that take a file to a bucket, does nothing of the user's."""
    if user_frame(frame) is None:
        _for_bamboo.add(thread)


_for_bamboo: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def looking_frame(frame: FrameType | None) -> FrameType | None:
    """The frame of the user's code whose own line looks at a path or a variable, by way of Python's
    library at most; what another library looks at for itself is nothing of the user's."""
    while frame is not None and frame.f_code.co_filename in _WAYS:
        frame = frame.f_back
    if frame is None or is_local(frame.f_code.co_filename):
        return frame
    # A pool's thread looks for who filled the pool.
    return user_frame(frame) if frame.f_code.co_filename.startswith(_POOLS) else None


_LIBRARY = os.path.dirname(os.__file__)
_WAYS = frozenset(
    place
    for name in (
        *("os", "_collections_abc", "posixpath", "genericpath", "glob", "shutil", "pathlib"),
        # From Python 3.13 on.
        *("pathlib/__init__", "pathlib/_local", "pathlib/_abc", "pathlib/_os"),
    )
    for place in (f"<frozen {name}>", os.path.join(_LIBRARY, f"{name}.py"))
)
"""Files whose frames lie between a look and who looks."""
_POOLS = os.path.join(_LIBRARY, "concurrent") + os.sep


def place_of(frame: FrameType | None) -> str:
    """`model.py, line 3,`: where the user's code stands, for a sentence that goes on."""
    if frame is None:
        return "the model"
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno},"


_WATCHING = frozenset(
    str(Path(__file__).resolve().with_name(f"{name}.py"))
    for name in ("environment", "guard", "local", "recording", "watch")
)
"""Files whose frames lie between the user's code and what it does."""
