"""What `bamboo doctor` looks at: a list of named checks, each with a result and a remedy.

Rule: a check asks and changes nothing; what it cannot find out is unknown, which is no good news. A
check is added by writing a function that gives a Finding, and naming it in the command's list.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from bamboo.errors import BambooError


class Result(StrEnum):
    """How a check came out; `unknown`: it could not be asked."""

    GOOD = "good"
    WARNING = "warning"
    FAULT = "fault"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found. `rows`: one object for each thing that it names."""

    result: Result
    sentence: str
    remedy: str = ""
    lines: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to look at."""

    name: str
    ask: Callable[[], Finding]
    after: str = ""
    """The check without whose good news this one cannot be asked."""


def examine(checks: Sequence[Check]) -> list[tuple[str, Finding]]:
    """Ask each in turn; one that breaks is unknown, and the others are asked all the same, but for
    those that come after it by name."""
    found: list[tuple[str, Finding]] = []
    for check in checks:
        before = [one.result for name, one in found if name == check.after]
        try:
            if before and before[-1] in (Result.FAULT, Result.UNKNOWN):
                raise BambooError(f"not asked, as it needs {check.after}")
            finding = check.ask()
        except BambooError as error:
            finding = Finding(result=Result.UNKNOWN, sentence=str(error))
        found.append((check.name, finding))
    return found


def exit_code(found: Sequence[tuple[str, Finding]]) -> int:
    """1 when anything is at fault or could not be found out; a warning is none."""
    bad = (Result.FAULT, Result.UNKNOWN)
    return int(any(finding.result in bad for _, finding in found))


def text(found: Sequence[tuple[str, Finding]]) -> str:
    """For a person: a line a check, what it names, and what to do."""
    lines = []
    for name, finding in found:
        lines.append(f"{name}: {finding.result}: {finding.sentence}")
        lines += [f"  {line}" for line in finding.lines]
        if finding.remedy:
            lines.append(f"  {finding.remedy}")
    return "\n".join(lines)


def body(found: Sequence[tuple[str, Finding]]) -> list[dict[str, Any]]:
    """The same as JSON."""
    kept = ("result", "sentence", "remedy", "rows")
    return [
        {"check": name, **{key: asdict(finding)[key] for key in kept}} for name, finding in found
    ]
