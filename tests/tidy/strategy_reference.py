"""`python -m tests.tidy.strategy_reference`: the generated part of `docs/strategies.md`.

Rule: below its mark the page has the catalogue of building blocks, a table for each key; above it
the page is written by hand. A test beside it holds the page to the catalogue.
"""

from itertools import groupby
from pathlib import Path

from bamboo.planner.sync.catalogue import BLOCKS, LETTERS
from cli.views.strategy import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"
MARK = "<!-- Below: written by `python -m tests.tidy.strategy_reference`. Do not edit. -->\n"


def catalogue() -> str:
    """A table for each group of blocks."""
    lines = ["", LETTERS, ""]
    for group, members in groupby(BLOCKS, key=lambda one: one.group):
        lines += [f"### {GROUPS[group].partition(':')[0].capitalize()}", ""]
        lines += [
            "| kind | what it does | bytes | when it wins | source |",
            "|---|---|---|---|---|",
        ]
        lines += [f"| `{x.name}` | {x.does} | {x.sends} | {x.wins} | {x.source} |" for x in members]
        lines.append("")
    return "\n".join(lines)


def page(text: str) -> str:
    """A page with its generated part as the catalogue has it."""
    by_hand, mark, _ = text.partition(MARK)
    if not mark:
        raise ValueError(f"{PAGE.name} has no line {MARK!r}")
    return by_hand + MARK + catalogue()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
