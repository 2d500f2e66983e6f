"""Quantities as short text, each in one form everywhere: time, money, rates; for bytes there is
`bamboo.core.phrases.size`."""

import textwrap
from collections.abc import Sequence

from cli.echo import terminal_width

WIDTH = 100
"""Columns that paragraphs are wrapped to, unless the terminal is narrower."""


def duration(seconds: float) -> str:
    """`37 ms`, `4.2 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 1:
        return milliseconds(seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock(seconds: float) -> str:
    """`0:42`, `12:05`, `1:02:03`: for a column that must not jump."""
    whole = max(0, round(seconds))
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def usd(amount: float) -> str:
    """Dollars with as many digits as the amount needs: `$0.0042`, `$1.37`, `$1,204.10`."""
    if amount == 0 or abs(amount) >= 1:
        return f"${amount:,.2f}"
    return f"${amount:.4f}"


def rate(value: float) -> str:
    """A count per something, with thousands separated: `12,345`; small ones keep a digit."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"


def number(value: float) -> str:
    """A number of any kind: whole ones whole, small ones with three digits."""
    if value == round(value):
        return f"{value:,.0f}"
    return rate(value) if abs(value) >= 10 else f"{value:.3g}"


def milliseconds(seconds: float) -> str:
    """`41 ms`, `0.4 ms`."""
    value = seconds * 1000
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 node`, `3 nodes`; `plural` where an s is not enough."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


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
        lines += paragraph(f"left out for want of width: {names}", width=width)
    return lines
