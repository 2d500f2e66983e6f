"""docs/guarantees.md names tests: each of them is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_test_that_the_page_names_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = NAMED.findall(text)
    assert len(found) == text.count("::"), "a test is named as `tests/file.py::test_name`"
    for section in text.split("\n## ")[1:-1]:
        assert NAMED.search(section), f"no test checks: {section.partition(chr(10))[0]}"
    missing = [
        f"{file}::{name}"
        for file, name in found
        if not re.search(rf"^def {name}\b", (ROOT / file).read_text(encoding="utf-8"), re.M)
    ]
    assert not missing
