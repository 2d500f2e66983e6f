"""Counts what a walk through the code meets: the product's files whose functions a call runs.

What is run at import (the bodies of modules and classes) does not count, and neither do
`bamboo/config`, `bamboo/ids.py` and `bamboo/errors.py`, which every walk meets, with what they call
themselves.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("bamboo/", "cli/", "cloud/")
EVERYWHERE = ("bamboo/config/", "bamboo/ids.py", "bamboo/errors.py")
_FUNCTION = 0x0002
"""`inspect.CO_NEWLOCALS`: the code of a function, not of a module or a class."""


def walked(call: Callable[[], object]) -> dict[str, set[str]]:
    """File, from the root -> names of its functions that `call` runs. It is called once before, so
    that nothing is imported while it is measured."""
    call()
    seen: set[CodeType] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code not in seen and not _is_below(frame):
            seen.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(before)
    found: dict[str, set[str]] = {}
    for code in seen:
        file = Path(code.co_filename)
        if not code.co_flags & _FUNCTION or not file.is_relative_to(ROOT):
            continue
        name = file.relative_to(ROOT).as_posix()
        if name.startswith(ROOMS):
            found.setdefault(name, set()).add(code.co_qualname)
    return found


def _is_below(frame: FrameType | None) -> bool:
    """Whether one of those called it that every walk meets, or it is one itself."""
    while frame is not None:
        name = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        if name.startswith(EVERYWHERE):
            return True
        frame = frame.f_back
    return False
