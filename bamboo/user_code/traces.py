"""An error of the user's own code, in a line: what it is and where it rose, which is what a person
needs of a traceback first."""

import traceback

from bamboo.user_code.local import is_local

MOST_FRAMES = 3
"""Shown, the innermost last."""


def line_of(error: BaseException) -> str:
    """`OSError: [Errno 28] No space left on device`, in one line."""
    try:
        said = str(error)
    except Exception as another:  # noqa: BLE001 - whatever the user's class raises
        said = f"its text cannot be had ({type(another).__name__})"
    return " ".join(f"{type(error).__name__}: {said}".split())


def user_lines(error: BaseException) -> list[str]:
    """The last frames of the user's code that an error went through, the innermost last:
    `parts.py, line 9, in forward: return x + y`. Empty: it rose elsewhere."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if is_local(frame.filename)
    ]
    return [
        f"{frame.filename.rpartition('/')[2]}, line {frame.lineno}, in {frame.name}: "
        f"{' '.join((frame.line or '').split())}"
        for frame in frames[-MOST_FRAMES:]
    ]


def placed_line_of(error: BaseException) -> str:
    """The error in one line, with the innermost of the user's lines that it went through."""
    own = user_lines(error)
    return f"{line_of(error)}, at {own[-1]}" if own else line_of(error)
