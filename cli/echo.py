"""Prints text: safe for a terminal, in columns and paragraphs, also to a full disk or to nobody.

Rules: text from a user's code, a node, a store, a cloud or a file passes `printable` before it is
shown. It cannot move the cursor, change colour, title or reading order, or imitate other text.

Where the disk is full or the reader has gone, a line of progress or the last error may be lost or
delayed, but nothing else happens, since the run must not depend on it. The result of a command is
not lost silently, unless its reader has gone, as in `bamboo launch JOB | head`.
"""

import errno
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from traceback import walk_tb

import click

from bamboo.errors import InputError
from bamboo.jsonl import DISK_FULL

WIDTH = 100
"""Columns that paragraphs are wrapped to, unless the terminal is narrower."""
WIDEST = 1000
"""Columns of a table where the output is not a terminal: it has them all."""
_LAYOUT = "\n\t"
_WITHOUT_LAYOUT = dict.fromkeys(map(ord, _LAYOUT))


def printable(text: str) -> str:
    """The text with escapes for what could control a terminal; lines, tabs and spaces stay."""
    if text.isascii() and text.translate(_WITHOUT_LAYOUT).isprintable():
        return text
    return "".join(one if _is_harmless(one) else ascii(one)[1:-1] for one in text)


def _is_harmless(one: str) -> bool:
    return one in _LAYOUT or one.isprintable() or unicodedata.category(one) == "Zs"


def open_closed() -> None:
    """Open the null device for each standard stream that was closed when this process began.
    Otherwise the first file that is opened gets its number, and receives what is printed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == descriptor, "the lowest number that is free"
            os.set_inheritable(descriptor, True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def echo(text: str, *, err: bool = False, nl: bool = True, over: bool = False) -> None:
    """Print progress as `click.echo` does, but survive a full disk and a reader that has gone, and
    escape what could control a terminal. `over` replaces the line before, which had no end."""
    try:
        click.echo(("\r" if over else "") + printable(text), err=err, nl=nl)
    except OSError as error:
        if error.errno == errno.EPIPE:
            _read_by_nobody((sys.stderr if err else sys.stdout).fileno())
        elif error.errno not in DISK_FULL:
            raise


def note(text: str) -> None:
    """A line of progress for a person, whatever standard output is used for."""
    echo(text, err=True)


def echo_result(text: str | bytes) -> None:
    """Print the result of a command. Raises InputError where it cannot be written."""
    try:
        click.echo(printable(text) if isinstance(text, str) else text, nl=isinstance(text, str))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        _read_by_nobody(sys.stdout.fileno())
        raise _refused(error) from error


def refused_by_output(error: OSError) -> InputError | None:
    """The error to report for an OSError of printing, including what click prints itself; None for
    any other error."""
    printed = any(f.f_code is click.echo.__code__ for f, _ in walk_tb(error.__traceback__))
    if not printed or error.errno not in DISK_FULL:
        return None
    _read_by_nobody(sys.stdout.fileno())
    return _refused(error)


def _refused(error: OSError) -> InputError:
    return InputError(
        f"standard output cannot be written: {error.strerror}; make room there, or send it "
        "elsewhere"
    )


def _read_by_nobody(descriptor: int) -> None:
    """Discard what is written there from now on. Otherwise what is buffered would fail again
    when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def terminal_width() -> int | None:
    """Columns of the terminal at standard output; None where it is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def progress_is_hidden() -> bool:
    """Whether standard error is not a terminal."""
    # It is None in a process that was started without standard error.
    return sys.stderr is None or not sys.stderr.isatty()


# ---------------------------------------------------------------------- columns and paragraphs


def paragraph(text: str, *, indent: int = 2, width: int | None = None) -> list[str]:
    """Words as lines of at most `width` columns, by default WIDTH; the second and later lines are
    indented two deeper."""
    return textwrap.wrap(
        text,
        min(WIDTH, terminal_width() or WIDTH) if width is None else width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def fold(text: str, *, width: int) -> str:
    """The same text for a terminal of this width: longer lines are broken between words."""
    out: list[str] = []
    for line in text.splitlines():
        words = line.lstrip()
        fits = len(line) <= width
        out += [line] if fits else paragraph(words, indent=len(line) - len(words), width=width)
    return "\n".join(out)


def columns(
    rows: Sequence[Sequence[str]], *, indent: int = 2, right: frozenset[int] = frozenset()
) -> list[str]:
    """Rows as aligned text lines; columns named in `right` are set flush right."""
    if not rows:
        return []
    widths = _widths(rows)
    return [
        (
            " " * indent
            + "  ".join(
                cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
                for i, cell in enumerate(row)
            )
        ).rstrip()
        for row in rows
    ]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]


def fitting(
    rows: Sequence[Sequence[str]],
    *,
    width: int,
    spare: Sequence[int],
    right: frozenset[int] = frozenset(),
) -> list[str]:
    """`columns` for a terminal of this width. Where they are wider, the columns of `spare` are left
    out, the first of them first, and a line names them; the first row has the names."""
    left_out: list[int] = []
    widths = _widths(rows) if rows else []
    for column in spare:
        kept = [w for i, w in enumerate(widths) if i not in left_out]
        if sum(kept) + 2 * len(kept) <= width:
            break
        left_out.append(column)
    stay = [i for i in range(len(widths)) if i not in left_out]
    lines = columns(
        [[row[i] for i in stay] for row in rows],
        right=frozenset(place for place, i in enumerate(stay) if i in right),
    )
    if left_out:
        names = ", ".join(rows[0][i] for i in left_out)
        lines += paragraph(f"left out for lack of width: {names}", width=width)
    return lines
