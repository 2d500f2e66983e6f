"""Fuzzing says at its end how much was read of each kind: a run that read nothing shows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.cases import CASES, Cases

HERE = Path(__file__).parent
_PROPERTY = "fuzzed"


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Iterator[Cases]:
    made = Cases()
    yield made
    assert made.read + made.refused > 0
    request.node.user_properties.append((_PROPERTY, made.summary()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(120 + CASES * 0.5))
            # Of a long input, hypothesis says that showing it takes a while.
            item.add_marker(pytest.mark.filterwarnings("ignore:Generating overly large repr"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = [
        f"{report.nodeid.partition('::')[2]}: {value}"
        for outcome in ("", "passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, value in report.user_properties
        if name == _PROPERTY and report.when in ("call", "teardown")
    ]
    if CASES > 1000:
        for line in sorted(set(lines)):
            terminalreporter.write_line(line)
