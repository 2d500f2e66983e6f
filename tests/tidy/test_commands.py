"""Commands are thin: what a command does, a program does through `bamboo.api`.

`lint-imports` keeps them from the rooms that lead a run. Of the other rooms of the application they
take values to show and options to ask with, and call no function: here that is seen.
"""

import ast
from collections.abc import Iterator

import bamboo
from bamboo import api
from tests.tidy.tree import ROOT, Source, python_sources

COMMANDS = "cli/commands/"
ROOMS = ("bamboo.billing", "bamboo.chaos", "bamboo.doctor", "bamboo.planner", "bamboo.study")
PURE = {
    *("check_hours", "made", "market_of"),
    *("figures", "gap_budgets", "plan_run", "layout_of", "figures_text", "grid_text"),
}
"""From the options of a made-up market to its trace, which `trace synth` writes to a file; and from
those of a schedule to its dry run, which `schedule` prints."""


def calling(source: Source) -> Iterator[str]:
    """Each function of such a room that this command imports, and each module, by its line."""
    if not source.path.startswith(COMMANDS):
        return
    for node in source.nodes:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(ROOMS):
            continue
        for alias in node.names:
            if alias.name[0].islower() and alias.name not in PURE:
                yield f"{source.path}:{node.lineno}: {alias.name} is no value; call bamboo.api"


def test_commands_call_the_api() -> None:
    found = [offence for source in python_sources() for offence in calling(source)]
    assert not found, "\n" + "\n".join(found)


def test_one_that_calls_a_room_is_seen() -> None:
    text = "from bamboo.study.paper import Asked, plan_on_paper\nfrom bamboo.study import report\n"
    assert len(list(calling(Source("cli/commands/plan.py", text)))) == 2
    assert list(calling(Source("cli/views/paper.py", text))) == []


def test_what_is_exported_has_types_and_a_docstring() -> None:
    stub = ast.parse((ROOT / "bamboo/__init__.pyi").read_text())
    typed = {a.asname for n in stub.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert typed == set(bamboo.__all__)
    for name in bamboo.__all__:
        assert getattr(bamboo, name).__doc__, name
    assert bamboo.launch is api.launch
    assert set(bamboo.__all__) < set(dir(bamboo))
