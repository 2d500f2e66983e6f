"""The lines of a trace as rows: separators, a header, message case, and further columns.

Rule: a line is accepted only if it has one meaning. An ambiguous or meaningless line is refused in
terms of the most similar format, with its number, its text and what to write instead.
"""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bamboo.errors import InputError

VERBS = ("add", "remove")
END = "end"
SHOWN = 80
"""Characters of a line that an error shows."""
_TIMES = frozenset(
    {"ms", "milliseconds", "time_ms", "timestamp_ms", "t_ms", "at_ms", "time", "timestamp", "t"}
)
_VERB_NAMES = frozenset({"event", "action", "verb", "type", "op", "operation", "kind", "change"})
_NODE_NAMES = frozenset({"node", "node_id", "name", "id", "instance", "instance_id", "host", "vm"})
_ZONE_NAMES = frozenset({"zone", "az", "availability_zone", "availabilityzone"})
_COUNT_NAMES = frozenset({"alive", "count", "nodes", "instances", "available"})
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?")


class Format(StrEnum):
    """The format of a file's lines; the value is what each line says."""

    EVENTS = "`ms,add|remove,node[,zone]`"
    COUNTS = "`YYYY-MM-DD, HH:MM:SS, alive`"


_COLUMNS: Mapping[Format, Mapping[str, Set[str]]] = {
    Format.EVENTS: {"ms, milliseconds": _TIMES, "event": _VERB_NAMES, "node": _NODE_NAMES},
    Format.COUNTS: {"date": {"date"}, "time": {"time"}, "alive": _COUNT_NAMES},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line that is not empty. For an event: time, verb in lower case, node and, if the file has
    it, zone; or time and `end`."""

    number: int
    line: str
    fields: tuple[str, ...]

    @property
    def place(self) -> str:
        """The place in the file, for errors."""
        return f"line {self.number}: {shown(self.line)!r}"


def shown(text: str) -> str:
    """At most SHOWN characters of the text."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def malformed(path: Path, row: Row, reason: str) -> InputError:
    """The error for a line of this file."""
    return InputError(f"{path}: {row.place}: {reason}")


def rows_of(path: Path, text: str, *, formats: str) -> tuple[Format, Sequence[Row]]:
    """The format of a file's lines, and all lines that say something, without the header.
    `formats`: all existing formats, in words. Raises InputError."""
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    separator = next((one for one in (",", ";", "\t") if one in lines[0][1]), None)
    rows = [_row(number, line, separator) for number, line in lines]
    kind = next(filter(None, map(_resembles, rows[:2])), None)
    if kind is None:
        raise malformed(path, rows[0], f"is a line of no known trace; give {formats}")
    has_zone = True
    if _is_header(rows[0]):
        has_zone = _check_header(path, rows[0], kind)
        named, rows = len(rows[0].fields), rows[1:]
        if not rows:
            raise InputError(f"{path}: has a header alone; give {kind} lines below it")
    else:
        named = 4
    if kind is Format.COUNTS:
        return kind, rows
    most = max(named, 4 if has_zone else 3)
    return kind, [_event(path, row, most=most, has_zone=has_zone) for row in rows]


def _row(number: int, line: str, separator: str | None) -> Row:
    """The fields of a line; empty fields at its end are dropped."""
    fields = [part.strip() for part in line.split(separator)]
    while len(fields) > 2 and not fields[-1]:
        fields.pop()
    return Row(number=number, line=line, fields=tuple(fields))


def _resembles(row: Row) -> Format | None:
    first, *others = (field.lower() for field in row.fields)
    if {*VERBS, END}.intersection(others):
        return Format.EVENTS
    if _DATE.match(first) or (first == "date" and len(others) == 2):
        return Format.COUNTS
    named = _VERB_NAMES.union(_NODE_NAMES).intersection(others)
    return Format.EVENTS if named or (_NUMBER.fullmatch(first) and others) else None


def _is_header(row: Row) -> bool:
    """Whether no field of it is what a line has: a number, a date, a verb."""
    return not any(
        field.lower() in (*VERBS, END) or field[:1].isdigit() or _NUMBER.fullmatch(field)
        for field in row.fields
    )


def _check_header(path: Path, row: Row, kind: Format) -> bool:
    """Whether the fourth column is the zone. Raises InputError for other columns than those of the
    format, or for another order, because they would be misread."""
    names = [field.lower().lstrip("#").strip().replace(" ", "_") for field in row.fields]
    wanted = _COLUMNS[kind]
    for place, (column, known) in enumerate(wanted.items()):
        name = names[place] if place < len(names) else ""
        if name not in known:
            raise malformed(
                path,
                row,
                f"column {place + 1} of this header is {name!r}, and is to be {column}: write "
                f"{kind} lines",
            )
    if kind is Format.COUNTS and len(names) > len(wanted):
        raise malformed(path, row, f"has {len(names)} columns; write {kind} lines")
    if _ZONE_NAMES.intersection(names[4:]):
        raise malformed(path, row, f"the zone is not its fourth column; write {kind} lines")
    return len(names) > 3 and names[3] in _ZONE_NAMES


def _event(path: Path, row: Row, *, most: int, has_zone: bool) -> Row:
    fields = row.fields
    verb = fields[1].lower() if len(fields) > 1 else ""
    if verb == END and len(fields) == 2:
        return Row(number=row.number, line=row.line, fields=(fields[0], END))
    if len(fields) < 3 or not fields[2]:
        raise malformed(path, row, f"write {Format.EVENTS}")
    if verb not in VERBS:
        raise malformed(
            path, row, f"{shown(fields[1])!r} is neither add nor remove; write {Format.EVENTS}"
        )
    if len(fields) > most:
        raise malformed(
            path,
            row,
            f"has {len(fields)} columns, and no header says what they are; write {Format.EVENTS}",
        )
    taken = (fields[0], verb, *fields[2 : 4 if has_zone else 3])
    if any("," in field for field in taken):
        raise malformed(path, row, f"a node or zone has no comma; write {Format.EVENTS}")
    return Row(number=row.number, line=row.line, fields=taken)
