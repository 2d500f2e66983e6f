"""What `bamboo doctor` checks: a list of named checks, each with a result and a remedy.

Rule: a check asks and changes nothing. What it cannot find out is unknown, which is not good news.
To add a check, write a function that returns a Finding and name it in the command's list.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from bamboo.errors import BambooError


class Result(StrEnum):
    """The result of a check; `unknown`: it could not be carried out."""

    GOOD = "good"
    WARNING = "warning"
    FAULT = "fault"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found. `rows` has one object for each thing that it names."""

    result: Result
    sentence: str
    remedy: str = ""
    lines: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to check."""

    name: str
    ask: Callable[[], Finding]
    after: str = ""
    """The check that has to pass before this one can be carried out."""


def examine(checks: Sequence[Check]) -> list[tuple[str, Finding]]:
    """Carry out each check in turn. A check that raises is unknown, and the others go on, except
    those that name it in `after`."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What all checks found, by name and in order."""

    found: tuple[tuple[str, Finding], ...]

    @property
    def exit_code(self) -> int:
        """1 when a check is a fault or unknown, otherwise 0; a warning does not count."""
        bad = (Result.FAULT, Result.UNKNOWN)
        return int(any(finding.result in bad for _, finding in self.found))

    def text(self) -> str:
        """The result for a person: a line for each check, what it names, and what to do."""
        lines = []
        for name, finding in self.found:
            lines.append(f"{name}: {finding.result}: {finding.sentence}")
            lines += [f"  {line}" for line in finding.lines]
            if finding.remedy:
                lines.append(f"  {finding.remedy}")
        return "\n".join(lines)

    def body(self) -> list[dict[str, Any]]:
        """The same as JSON."""
        kept = ("result", "sentence", "remedy", "rows")
        return [
            {"check": name, **{key: asdict(finding)[key] for key in kept}}
            for name, finding in self.found
        ]
