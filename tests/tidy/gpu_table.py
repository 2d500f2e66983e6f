"""`python -m tests.tidy.gpu_table`: writes the table of docs/gpu.md from benchmarks/results/gpu."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "gpu"
PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def table() -> str:
    """One table for each file of results: a row for each figure that was measured, and a line that
    names those that were not."""
    out = []
    for path in sorted(RESULTS.glob("*.json")):
        kept = json.loads(path.read_text())
        if "figures" not in kept:
            continue
        figures: Mapping[str, Mapping[str, Any]] = kept["figures"]
        out += [f"From `benchmarks/results/gpu/{path.name}`:", "", "| figure | value | limit |"]
        out += ["|---|---|---|"]
        for name, one in figures.items():
            if one["value"] is not None:
                out.append(f"| {name} | {_value(one)} | {_limit(one)} |")
        missing = [name for name, one in figures.items() if one["value"] is None]
        out += ["", "Not run:", "", *(f"- {name}" for name in missing or ["nothing"]), ""]
    return "\n".join(out).rstrip()


def _value(one: Mapping[str, Any]) -> str:
    value, unit = one["value"], one["unit"]
    if isinstance(value, bool):
        return "yes" if value else "no"
    said = f"{value:,.4g}" if isinstance(value, float) else str(value)
    return f"{said} {unit}".strip()


def _limit(one: Mapping[str, Any]) -> str:
    if one["limit"] is None:
        return ""
    return f"{one['limit']}: {'reached' if one['reached'] else 'not reached'}"


def with_table(page: str) -> str:
    """The page with the table between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
    sys.exit(0)
