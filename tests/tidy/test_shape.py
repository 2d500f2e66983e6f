"""The product's parts are few, small, and know of each other one way.

Each rule is shown an offender and an innocent, and the lists of exceptions have no idle entry.
"""

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.tidy.program import Program, code_lines
from tests.tidy.tree import Source, python_sources

CLASS_LINES = 250
COLLABORATORS = 8
SMALL_MODULE = 40
"""Code lines below which a module with at most one importer needs a reason."""

SMALL_FOLDERS = {
    "bamboo/core/": "a decision has a file of its own, by its name; `machine` only names them all",
    "cli/commands/": "a command has a file of its own, by its name",
    "cli/views/": "a view has a file of its own, so that only what is shown is loaded",
}
SMALL_MODULES = {
    "bamboo.controller.preempting": "an action of the API has a file of its own, by its name",
    "bamboo.coord.stored": "what anybody may have written to a store is parsed in one place",
    "bamboo.doctor.examination": "which checks there are is read apart from each check",
    "bamboo.models.evaluating": "what an evaluation does with layers, for runtime and reference",
    "bamboo.runs.segment": "is a program of its own",
    "bamboo.runtime.check.writes": "one mode of torch's dispatcher, beside a module that is long",
    "bamboo.sim.compared": "views, which hold no logic, ask it",
    "bamboo.wiring.program": "is a program of its own",
    "bamboo.wiring.worker": "is a program of its own",
    "cloud.ec2.process_starter": "an implementation of a port, which the wiring chooses",
    "cloud.local.lifeline": "is a program of its own",
    "cloud.local.mock_repeats": "pure answers of AWS, beside a mock that is long",
    "cloud.local.reaper": "is a program of its own",
    "cloud.orphans": "pure, below the check that looks into an account",
}
"""Small modules that at most one file imports, each with its reason."""
SMALL_MODULES_YET = {
    "bamboo.billing.busy",
    "bamboo.study.advised",
}
"""Those that are yet to be put beside their callers."""


@cache
def product() -> Program:
    return Program([source for source in python_sources() if source.is_product])


def program(**texts: str) -> Program:
    return Program([Source(f"bamboo/{name}.py", text) for name, text in texts.items()])


# ---------------------------------------------------------------------- circles


def test_files_import_each_other_one_way() -> None:
    testbed = [
        source
        for source in python_sources()
        if source.path.startswith("testbed/") and not source.path.startswith("testbed/swarm/")
    ]
    assert not Program([*product().sources.values(), *testbed]).circle(), (
        "move a Protocol or a value to the lower file, or join two files that are one idea"
    )


def test_a_circle_is_seen_wherever_its_imports_stand() -> None:
    hidden = "if TYPE_CHECKING:\n    from bamboo.a import A\n"
    within = "def f():\n    import bamboo.b\n"
    found = program(a="from bamboo import b\n", b="from bamboo.c import C\n", c=hidden)
    assert set(found.circle()) == {"bamboo.a", "bamboo.b", "bamboo.c"}
    assert program(a=within, b=hidden).circle()
    assert not program(a=within, b="import bamboo.c\n", c="", d="import bamboo.a\n").circle()


# ---------------------------------------------------------------------- classes


def test_classes_are_read_in_a_sitting() -> None:
    longer = {c.name: c.lines for c in product().classes if c.lines > CLASS_LINES}
    assert not longer, "divide what they are responsible for"


def test_a_class_has_few_collaborators() -> None:
    found = {c.name: product().collaborators(c) for c in product().classes}
    more = {name: given for name, given in found.items() if len(given) > COLLABORATORS}
    assert not more, "divide what they are responsible for"


MANY = """
from dataclasses import dataclass
from collections.abc import Callable
from bamboo.parts import Store

class Fleet:
    def start(self): ...

@dataclass(frozen=True)
class Facts:
    fleet: Fleet
    def number(self): ...

@dataclass
class Bag:
    fleet: Fleet
    now: Callable[[], float]
    facts: Facts
    name: str

class Made:
    def __init__(self, store: "Store | None", facts: Facts, bag: Bag, *, size: int): ...

class Led(Fleet): ...

@dataclass
class Holds:
    one: Led
    made_here: Fleet = field(init=False)
"""


def test_what_a_collaborator_is() -> None:
    here = program(many=MANY, parts="class Store(Protocol):\n    def get(self): ...\n")

    def of(name: str) -> list[str]:
        return here.collaborators(here.by_name[name])

    assert of("Bag") == ["fleet", "now"], (
        "objects and functions; no value, even one that holds some"
    )
    assert of("Made") == ["store", "fleet", "now"], "a bag counts as what is in it"
    assert of("Holds") == ["one"]


# ---------------------------------------------------------------------- small modules


def small(found: Program) -> set[str]:
    """Small modules with at most one importer: of those a reader would open two files for one."""
    return {
        module
        for module, source in found.sources.items()
        if not source.path.endswith("__init__.py")
        and len(found.importers[module]) < 2
        and len(source.lines) < 3 * SMALL_MODULE
        and code_lines(source) < SMALL_MODULE
    }


def test_a_small_module_has_a_reason() -> None:
    wanting = {
        module
        for module in small(product())
        if not product().sources[module].path.startswith(tuple(SMALL_FOLDERS))
    }
    excused = SMALL_MODULES_YET.union(SMALL_MODULES)
    assert not wanting - excused, "put each beside its caller, or say why not"
    assert not excused - wanting, "these need no reason by now; take them out"


def test_which_module_is_small() -> None:
    text = '"""' + "Of many words.\n" * 50 + '"""\n# and a comment\n\n'
    here = program(
        a=text + "x = 1\n" * 39,
        b=text + "import bamboo.c\n" * 40,
        c=text + "import bamboo.d\n",
        d="x = 1\n",
        e="import bamboo.d\n" * 40,
    )
    assert small(here) == {"bamboo.a", "bamboo.c"}


# ---------------------------------------------------------------------- the executor


def assigned_from_outside(source: Source) -> Iterator[str]:
    """Where a file assigns to a field of an executor, or of what an executor has."""
    for node in source.nodes:
        if isinstance(node, ast.Assign):
            targets = [inner for target in node.targets for inner in ast.walk(target)]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [*ast.walk(node.target)]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                owner = ast.unparse(target.value).split(".")
                if {"executor", "_executor", "roster", "_roster"} & set(owner):
                    yield f"{source.path}:{target.lineno}: {ast.unparse(target)} is assigned to"


def test_the_executor_changes_by_its_verbs() -> None:
    found = [
        line for source in product().sources.values() for line in assigned_from_outside(source)
    ]
    assert not found, "give `bamboo.runtime.step.roster` or the executor a verb for it"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("self._executor.hold = True\n", True),
        ("x, node.executor.operations.first.wanted = 1, True\n", True),
        ("executor.last_step += 1\n", True),
        ("executor.hold_steps(True)\nself.executor = executor\n", False),
        ("held = executor.hold\n", False),
    ],
)
def test_an_assignment_from_outside_is_seen(text: str, seen: bool) -> None:
    assert bool([*assigned_from_outside(Source("bamboo/runtime/node/x.py", text))]) is seen
