"""What a check on a card has found: figures, their limits, and whether these are kept.

Rule: pure. All limits are in `LIMITS`; what measures names one of them, and judges nothing.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Value: TypeAlias = float | int | str | bool

SCHEMA_VERSION = 1
CARD = ("uuid", "device")
"""The facts by which a card is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The bound of a figure."""

    bound: float
    at_most: bool

    def keeps(self, value: float) -> bool:
        """Whether the value is within the bound."""
        return value <= self.bound if self.at_most else value >= self.bound

    def text(self) -> str:
        """The bound for a person."""
        return f"{'<=' if self.at_most else '>='} {self.bound:g}"


LIMITS: Mapping[str, Limit] = {
    # Tensors and losses that are not, bit for bit, those that they are held against.
    "differing": Limit(bound=0, at_most=True),
    # Whether `bamboo verify` found a run equal to a calm one.
    "equal": Limit(bound=1, at_most=False),
    # Tokens per second of a run of one node, over those of a plain loop of the same microbatches.
    "executor": Limit(bound=0.98, at_most=False),
    # Tokens per second of a run, over those of the fastest loop that need not be exact.
    "exactness": Limit(bound=0.90, at_most=False),
    # A step with a stash over one without, less 1.
    "stash": Limit(bound=0.01, at_most=True),
    # The share of a copy's time in which the card also computes.
    "hidden": Limit(bound=0.90, at_most=False),
    # The speed of copies over the highest that was measured on the card.
    "copies": Limit(bound=0.80, at_most=False),
    # The plan's bytes over the allocator's peak, less 1, without its sign.
    "formula": Limit(bound=0.03, at_most=True),
    # Bytes that the allocator reserved over those that were allocated.
    "reserved": Limit(bound=1.15, at_most=True),
    # Accesses that torch's CUDA sanitizer takes for a race.
    "races": Limit(bound=0, at_most=True),
    # Milliseconds from end-of-file to the lost stage's next operation, the median.
    "pause": Limit(bound=150, at_most=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table."""

    part: str
    name: str
    value: Value | None = None
    """None: it was not measured, and `why_not` says why."""
    unit: str = ""
    limit: str = ""
    """A name out of LIMITS; empty: the figure is only recorded."""
    why_not: str = ""

    @property
    def key(self) -> str:
        """What identifies it in a file of results."""
        return f"{self.part}/{self.name}"

    @property
    def reached(self) -> bool | None:
        """Whether the limit is kept; None without a value or a limit."""
        if not self.limit or self.value is None:
            return None
        return LIMITS[self.limit].keeps(float(self.value))

    def line(self) -> str:
        """The figure for a person."""
        head = f"  {self.name:58} "
        bound = f"  {LIMITS[self.limit].text()}" if self.limit else ""
        if self.value is None:
            return f"{head}{'-':>12} {bound}  NOT RUN: {self.why_not}"
        verdict = {None: "", True: "  reached", False: "  NOT REACHED"}[self.reached]
        return f"{head}{_shown(self.value):>12} {self.unit}{bound}{verdict}".rstrip()

    def body(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The figure as it is kept, with the facts of where it was measured."""
        limit = LIMITS[self.limit] if self.limit else None
        return {
            "value": self.value,
            "unit": self.unit,
            "limit": None if limit is None else limit.text(),
            "reached": self.reached,
            **({"not_run": self.why_not} if self.value is None else {}),
            **facts,
        }


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def merged(text: str, figure: Figure, facts: Mapping[str, Any]) -> str:
    """A file of results with this figure in it, in place of an older one of its name. `text` is the
    file as it was, empty for a new one. A line that was not run replaces no value of the same
    card, which has its own date and commit. Raises ValueError for a text that is no such file."""
    body = json.loads(text) if text else {"schema_version": SCHEMA_VERSION, "figures": {}}
    if not isinstance(body, dict) or body.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema {SCHEMA_VERSION} is expected")
    figures = body["figures"]
    old = figures.get(figure.key)
    stays = old is not None and old["value"] is not None and figure.value is None
    if not (stays and all(old.get(name) == facts.get(name) for name in CARD)):
        figures[figure.key] = figure.body(facts)
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def table(text: str) -> list[str]:
    """The lines of a file of results, by part, each with its date and commit. Raises ValueError for
    a text that is no such file."""
    body = json.loads(text)
    if not isinstance(body, dict) or body.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema {SCHEMA_VERSION} is expected")
    limits = {limit.text(): name for name, limit in LIMITS.items()}
    lines, last = [], ""
    for key, kept in sorted(body["figures"].items(), key=lambda item: item[0].partition("/")[0]):
        part, _, name = key.partition("/")
        if part != last:
            lines.append(f"== {part}")
        last = part
        figure = Figure(
            part=part,
            name=name,
            value=kept["value"],
            unit=kept["unit"],
            limit=limits.get(kept["limit"], ""),
            why_not=kept.get("not_run", ""),
        )
        lines.append(f"{figure.line()}  ({kept['date']}, {kept['commit'] or 'commit unknown'})")
    return lines


def with_record(text: str, kind: str, name: str, record: Mapping[str, Any]) -> str:
    """A file of results with a record (a digest, a profile) in it, in place of an older one of its
    name. The file has a figure already."""
    body = json.loads(text)
    body.setdefault(kind, {})[name] = dict(record)
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def records_of(text: str, kind: str, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The records of a kind, by name, of the same card and commit. Raises ValueError for a text
    that is not JSON."""
    found = json.loads(text).get(kind, {}) if text else {}
    same = (*CARD, "commit")
    return {
        name: record
        for name, record in found.items()
        if all(record.get(fact) == facts.get(fact) for fact in same)
    }


def cards_with(digest: str, texts: Iterable[str]) -> set[str]:
    """The UUIDs of cards that gave this digest, out of files of results. Raises ValueError for a
    text that is not JSON."""
    records = (r for text in texts for r in json.loads(text).get("digests", {}).values())
    return {r["uuid"] for r in records if r["digest"] == digest and r.get("uuid")}
