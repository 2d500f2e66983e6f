"""Mutants change one place each, by position, and leave out what no test could see."""

import pytest

from benchmarks.measuring.mutations import mutants_of

SOURCE = '''\
"""A module."""
from typing import Any
Either = int | str
LIMIT: int = 3


@plain(frozen=True)
def choose(state: Any, most: int = 2) -> bool | None:
    """At most 4."""
    assert most > 1, "never"
    {line}
'''


def mutated(line: str) -> set[str]:
    """The mutants of one line of a function, as that line is then."""
    text = SOURCE.replace("{line}", line)
    valid = [one for one in mutants_of("a.py", text) if one.is_another(text)]
    return {one.apply(text).splitlines()[-1].strip() for one in valid if one.line == 11}


@pytest.mark.parametrize(
    ("line", "mutants"),
    [
        ("if most < 1: pass", {"if most <= 1: pass", "if most >= 1: pass", "if most < 2: pass"}),
        (
            "if a is not None and (b in c): pass",
            {
                "if a is None and (b in c): pass",
                "if a is not None and (b not in c): pass",
                "if a is not None or (b in c): pass",
                "if (not (a is not None and (b in c))): pass",
            },
        ),
        ("x = a if not b else c", {"x = a if  b else c"}),
        ("state = f(state)", {"pass"}),
        ("other = f(state)", set()),
        ("f(-1)", {"f(1)", "f(-2)", "pass"}),
        ("x = a - b", {"x = a + b"}),
        ("x = any(a)", {"x = all(a)"}),
        ("x = (*a, b)", {"x = ( b)", "x = (*a, )"}),
        ("x = y.having(a=b, c=d)", {"x = y.having( c=d)", "x = y.having(a=b, )"}),
        ("return f(most)", {"return None"}),
        ("raise ValueError(f'{most + 1}')", {"pass"}),
        ("words = f'{most - 1}' if most == 1 else ''", set()),
        ("return 'a' + words", set()),
    ],
)
def test_each_kind(line: str, mutants: set[str]) -> None:
    assert mutated(line) == mutants


def test_of_the_rest_only_constants_are_mutated() -> None:
    found = mutants_of("a.py", SOURCE.replace("{line}", "return None"))
    assert [(one.line, one.kind, one.function) for one in found] == [
        (4, "constant", None),
        (8, "constant", 7),
    ]
    assert found[0].diff(SOURCE) == ["-LIMIT: int = 3", "+LIMIT: int = 4"]
