"""Text in columns and paragraphs, for a terminal of any width."""

import textwrap
from collections.abc import Sequence

from cli.echo import terminal_width

WIDTH = 100
"""Columns that paragraphs are wrapped to, unless the terminal is narrower."""


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
