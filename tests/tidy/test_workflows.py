"""What runs after a push is what a person runs before it: the make targets, and nothing else."""

import re
import tomllib

from tests.tidy.tree import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEXT = "\n".join(path.read_text() for path in WORKFLOWS)


def test_it_checks_and_tests_by_the_make_targets() -> None:
    assert re.findall(r"^ *-? *run: *(.*)$", TEXT, re.MULTILINE) == ["make check", "make test"]
    assert re.search(r"^on:\n  push:\n  pull_request:$", TEXT, re.MULTILINE)


def test_actions_are_pinned_by_their_major_version() -> None:
    used = re.findall(r"uses: *(\S+)", TEXT)
    assert used
    assert [one for one in used if not re.fullmatch(r"actions/[\w-]+@v\d+", one)] == []


def test_each_python_that_is_tried_is_one_that_is_promised() -> None:
    promised = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    least = tuple(map(int, promised.removeprefix(">=").split(".")))
    tried = [tuple(map(int, one.split("."))) for one in re.findall(r'"(3\.\d+)"', TEXT)]
    assert min(tried) == least
