"""The whole tree keeps the house rules; a failure lists every offence with its file and line."""

import ast
import sys
import tomllib
from collections import Counter
from itertools import chain
from pathlib import PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bamboo.config.check import TRACKERS
from tests.tidy import rules
from tests.tidy.tree import ROOT, paths, python_sources, text_sources

IMPORT_NAME_OF = {
    "pyzmq": "zmq",
    "mlflow-skinny": "mlflow",
    "opentelemetry-sdk": "opentelemetry",
}
"""Distributions whose import name is another one."""
MOST_FILES = 30
SMALL_FOLDERS = ("bamboo/", "benchmarks/", "cli/", "cloud/", "examples/", "testbed/", "tests/")
"""Where a folder has at most `MOST_FILES` Python files at one level."""


@pytest.mark.parametrize("rule", rules.PYTHON_RULES, ids=lambda rule: rule.__name__)
def test_python_files_keep(rule: rules.Rule) -> None:
    offences = [offence for source in python_sources() for offence in rule(source)]
    assert not offences, "\n" + "\n".join(offences)


@pytest.mark.parametrize("rule", rules.TEXT_RULES, ids=lambda rule: rule.__name__)
def test_text_files_keep(rule: rules.Rule) -> None:
    offences = [offence for source in text_sources() for offence in rule(source)]
    assert not offences, "\n" + "\n".join(offences)


def test_the_tree_is_seen() -> None:
    seen = {source.path for source in python_sources()}
    assert {"bamboo/errors.py", "cli/main.py", "tests/tidy/rules.py"} <= seen


def test_every_folder_with_python_is_a_package() -> None:
    # benchmarks are scripts, and examples stand alone as a user's own files do.
    folders = {
        PurePosixPath(s.path).parent
        for s in python_sources()
        if s.path.startswith(("bamboo/", "cloud/", "cli/", "testbed/", "tests/"))
    }
    missing = [f"{f}/__init__.py" for f in sorted(folders) if f"{f}/__init__.py" not in paths()]
    assert not missing


def test_folders_stay_small() -> None:
    held = Counter(
        str(PurePosixPath(s.path).parent)
        for s in python_sources()
        if s.path.startswith(SMALL_FOLDERS)
    )
    assert {"bamboo/core", "cli/views", "cloud/local", "tests/e2e"} <= set(held)
    beyond = {folder: n for folder, n in held.items() if n > MOST_FILES}
    assert not beyond, "group their files into folders by topic"


def test_product_imports_only_declared_distributions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def importable_of(requirements: list[str]) -> set[str]:
        declared = {canonicalize_name(Requirement(text).name) for text in requirements}
        return {IMPORT_NAME_OF.get(name, name) for name in declared}

    always = importable_of(project["dependencies"])
    always |= {"bamboo", "cloud", "cli", "botocore"} | set(sys.stdlib_module_names)
    # Who needs an extra is in one place, behind `bamboo.extras`.
    by_room = {
        "cloud/local/": extras["local"],
        "cli/pictures/": extras["plot"],
        "bamboo/data/": extras["data"],
        "bamboo/models/hf/": extras["hf"],
        "bamboo/trackers/": [one for name in TRACKERS for one in extras[name]],
    }
    offences = []
    for source in python_sources():
        rooms = [needs for room, needs in by_room.items() if source.path.startswith(room)]
        importable = always.union(*map(importable_of, rooms))
        for node in source.nodes if source.is_product else ():
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            else:
                continue
            offences += [
                f"{source.path}:{node.lineno}: {name} is not among the dependencies"
                for name in names
                if name.split(".")[0] not in importable
            ]
    assert not offences, "\n" + "\n".join(offences)


def test_everything_declared_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[canonicalize_name(name)] = version
    for text in wanted:
        requirement = Requirement(text)
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin, f"constraints.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(pin), f"{text} does not allow the pinned {pin}"
    assert pins["torch"] == "2.13.0"
