"""`python -m benchmarks.claims`: writes docs/claims.md from claims.toml and the kept results.

Rule: no figure is written by hand. claims.toml says which values of which result a claim is about;
figure, quartiles, date, commit and command are the result's own. A claim that tests hold has none.
"""

import json
import statistics
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring.report import RESULTS, median_and_quartiles, paired_ratios

SPEC = Path(__file__).with_name("claims.toml")
PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
HEAD = (
    "claim",
    "figure",
    "first quartile",
    "third quartile",
    "values",
    "shown on",
    "date",
    "commit",
)
NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A claim as the page has it. Quartiles are `NONE` for fewer than three values, and for a
    figure that is no median."""

    about: str
    figure: str
    quartiles: tuple[str, str]
    values: int
    on: str
    facts: Mapping[str, Any]
    readme: str
    """The figure in the words of README.md; "" where it is not there."""

    def line(self) -> str:
        """As a line of the table."""
        stands = (self.on, self.facts["date"], self.facts["commit"])
        cells = (self.about, self.figure, *self.quartiles, str(self.values), *stands)
        return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def rows(section: Mapping[str, Any]) -> Iterator[Row]:
    """The measured claims of a section; `each` gives a row for every tuple of words in it."""
    for asked in section.get("claim", ()):
        claim = {"on": section.get("on", ""), "file": section.get("file", ""), **asked}
        for words in claim.pop("each", [[]]):
            yield row({key: _filled(value, words) for key, value in claim.items()})


def row(claim: Mapping[str, Any]) -> Row:
    """Raises LookupError and ValueError for a claim that its result does not have."""
    result = newest(claim["file"])
    values = _values(result, claim.get("over", ()))
    if "by" in claim:
        by = _values(result, claim["by"])
        values = paired_ratios(values * (len(by) if len(values) == 1 else 1), by)
    given = _values(result, claim["figure"]) if "figure" in claim else []
    if len(given) > 1 or not (given or values):
        raise LookupError(f"{claim['about']}: the result has {len(given or values)} values of it")
    say = claim.get("say", "{:.2f}")
    if "count" in claim:
        figure = say.format(sum(value < claim["count"] for value in values), len(values))
    else:
        chosen = {"median": statistics.median, "most": max, "least": min}[claim.get("is", "median")]
        figure = _said(given[0] if given else chosen(values), claim, say)
    spread = (NONE, NONE)
    if len(values) > 2 and claim.get("is", "median") == "median" and "count" not in claim:
        _, low, high = median_and_quartiles(values)
        spread = (_said(low, claim, say), _said(high, claim, say))
    return Row(
        about=claim["about"],
        figure=figure,
        quartiles=spread,
        values=len(values) or 1,
        on=claim["on"],
        facts=result["facts"],
        readme=claim.get("readme", "").replace("{figure}", figure),
    )


def newest(name: str) -> Mapping[str, Any]:
    """The newest result of that name. Raises LookupError where there is none."""
    found = sorted(RESULTS.glob(f"{name}-????-??-??.json"))
    if not found:
        raise LookupError(f"benchmarks/results has no {name}-DATE.json")
    result: Mapping[str, Any] = json.loads(found[-1].read_text())
    return result


def _filled(value: Any, words: list[Any]) -> Any:
    """A text, or each of a list of them, with {0}, {1} replaced."""
    if isinstance(value, list):
        return [_filled(one, words) for one in value]
    if isinstance(value, str):
        for number, word in enumerate(words):
            value = value.replace(f"{{{number}}}", str(word))
    return value


def _values(result: Mapping[str, Any], paths: str | list[str]) -> list[float]:
    """All numbers at these paths, in order."""
    listed = [paths] if isinstance(paths, str) else paths
    return [float(n) for path in listed for n in _at(result, path.split("/"))]


def _at(value: Any, path: list[str]) -> Iterator[float]:
    """All numbers at a path: names, numbers of items, `*` for each item, or `key=value&key=value`
    for the items of a list that are so. Raises LookupError where one is not there."""
    if not path:
        yield from value if isinstance(value, list) else [value]
        return
    first, rest = path[0], path[1:]
    if first == "*":
        found = list(value.values()) if isinstance(value, dict) else value
    elif isinstance(value, list) and "=" in first:
        wanted = [pair.partition("=")[::2] for pair in first.split("&")]
        found = [one for one in value if all(str(one[key]) == text for key, text in wanted)]
    else:
        found = [value[int(first)] if isinstance(value, list) else value[first]]
    if not found:
        raise LookupError(f"nothing is {first}")
    for one in found:
        yield from _at(one, rest)


def _said(value: float, claim: Mapping[str, Any], say: str) -> str:
    if claim.get("excess"):
        value = value - 1
    text = say.format(100 * value if claim.get("excess") or claim.get("percent") else value)
    return text.replace("-0.0 %", "0.0 %").replace("+0.0 %", "0.0 %")


def spec() -> Mapping[str, Any]:
    """What claims.toml says."""
    return tomllib.loads(SPEC.read_text(encoding="utf-8"))


def page() -> str:
    """The whole page."""
    asked = spec()
    out = [asked["head"].strip()]
    for section in asked["section"]:
        out += ["", f"## {section['name']}", ""]
        if "note" in section:
            out += [section["note"].strip(), ""]
        measured = list(rows(section))
        if measured:
            out += [
                f"| {' | '.join(HEAD)} |",
                "|" + "---|" * len(HEAD),
                *(one.line() for one in measured),
                "",
            ]
            commands = dict.fromkeys(one.facts["command"] for one in measured)
            out += ["Measured by:", "", *(f"- `{command}`" for command in commands), ""]
        if held := section.get("held", ()):
            out += ["| what holds | command | shown on |", "|---|---|---|"]
            out += [f"| {one['about']} | {one['command']} | {one['on']} |" for one in held]
        while not out[-1]:
            out.pop()
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.exit(0)
