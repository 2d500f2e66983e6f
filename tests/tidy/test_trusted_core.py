"""The rooms on which the bits of a run rest are named, and stay small enough to be read."""

import re

from tests.tidy.tree import ROOT, python_sources

GUARANTEES = ROOT / "docs" / "guarantees.md"
MOST_LINES = 13_000
"""All lines count: code, comments, docstrings and blank ones."""


def rooms() -> list[str]:
    """The rooms that the page names as the trusted core, as paths from the root."""
    section = GUARANTEES.read_text(encoding="utf-8").partition("## The trusted core")[2]
    return re.findall(r"^- `(bamboo/[\w/]+)`", section.partition("\n## ")[0], re.MULTILINE)


def test_the_trusted_core_stays_small() -> None:
    named = rooms()
    assert named, "docs/guarantees.md names the rooms of the trusted core"
    lines = {
        room: sum(len(s.lines) for s in python_sources() if s.path.startswith(f"{room}/"))
        for room in named
    }
    assert all(lines.values()), f"a room is not there: {lines}"
    assert sum(lines.values()) <= MOST_LINES, lines
