"""Views and pictures show what was found: from the rooms of the application they take values alone.

`lint-imports` keeps them from clouds, stores and the controller; here it is seen that they call no
function of the other rooms that finds something out.
"""

import ast
from collections.abc import Iterator

from tests.tidy.tree import Source, python_sources

SHOWN = ("cli/views/", "cli/pictures/")
ROOMS = ("bamboo.runs", "bamboo.billing", "bamboo.study", "bamboo.chaos", "bamboo.config.catalogue")
SENTENCES = {
    "short_preemption_line",
    "preemption_line",
    "reconfigured_line",
    "with_short_names",
    "node_rows",
}
"""Functions from values to text, or to the rows of a table, that more than a view needs."""


def asking(source: Source) -> Iterator[str]:
    """Each function of such a room that this file imports, and each module, by its line."""
    if not source.path.startswith(SHOWN):
        return
    for node in source.nodes:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(ROOMS):
            continue
        for alias in node.names:
            if alias.name[0].islower() and alias.name not in SENTENCES:
                yield (
                    f"{source.path}:{node.lineno}: {alias.name} is not a value; ask it before, and "
                    "hand the view what it said"
                )


def test_views_ask_nobody() -> None:
    found = [offence for source in python_sources() for offence in asking(source)]
    assert not found, "\n" + "\n".join(found)


def test_one_that_asks_is_seen() -> None:
    text = "from bamboo.study.paper import Shown, plan_on_paper\nfrom bamboo.runs import lock\n"
    assert len(list(asking(Source("cli/views/paper.py", text)))) == 2
    assert list(asking(Source("cli/commands/plan.py", text))) == []
    innocent = "from bamboo.study.paper import NEXT, Shown\nfrom bamboo.quantities import usd\n"
    assert list(asking(Source("cli/views/paper.py", innocent))) == []
