"""Which files are the user's own: neither Python's library, nor installed, nor Bamboo itself.

A package that is installed as editable lies outside of site-packages, so it counts as local.
"""

import functools
import os
import site
import sys
import sysconfig
from pathlib import Path
from types import FrameType

_PACKAGES = Path(__file__).resolve().parents[2]
OWN_FOLDERS = tuple(str(_PACKAGES / name) + os.sep for name in ("bamboo", "cloud", "cli"))
"""Where Bamboo's packages lie; its release is part of a run's identity by itself."""
_SYSTEM = ("/proc/", "/sys/", "/dev/")


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    found |= {*site.getsitepackages(), site.getusersitepackages()}
    # Of an interpreter in a venv the library lies with the one that it was made of.
    found |= {os.path.realpath(path) for path in found}
    return tuple(sorted(path.rstrip(os.sep) + os.sep for path in found))


@functools.lru_cache(maxsize=65536)
def is_local(path: str) -> bool:
    """Whether an absolute path is a file of the user's."""
    if not os.path.isabs(path):
        return False
    real = os.path.realpath(path)
    for one in (os.path.normpath(path), real):
        if one.startswith((*OWN_FOLDERS, *_SYSTEM, *_installed_folders())):
            return False
    return not real.endswith(".pyc") and real != os.path.realpath(sys.executable)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's code on this stack, before the first of Bamboo's: that one
    called the user's code. None: no user's code runs here."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OWN_FOLDERS) and not name.startswith(_HERE):
            return None
        if is_local(name):
            return frame
        frame = frame.f_back
    return None


def place_of(frame: FrameType | None) -> str:
    """`model.py, line 3,`: where the user's code stands, for a sentence that goes on."""
    if frame is None:
        return "the model"
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno},"


_HERE = str(Path(__file__).resolve().parent) + os.sep
