"""`python -m bamboo.runtime.check.own_builder`: asks a builder of strategies that the user wrote.

Standard input: {"file", "function", "facts", "situation"}. Standard output: {"rules": [...],
"bucket": ..., "zones": [...]}, what it returned as JSON; or {"error": line} and exit code 2.

Rule: its code runs here and nowhere else, so no node needs it: what a run keeps is the rules.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from bamboo.errors import InputError
from bamboo.planner.sync.written import facts_from, situation_from
from bamboo.runtime.check.stdout_answer import one_answer
from bamboo.topology.sync import Sync
from bamboo.user_code.loading import entry_of, load_entry
from bamboo.user_code.traces import placed_line_of

MOST_SHOWN = 200
"""Characters of what a builder returned that an error shows."""


def asked(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the builder returns for these facts, as JSON. Raises InputError."""
    file, function = Path(request["file"]), str(request["function"])
    facts = tuple(map(facts_from, request["facts"]))
    try:
        build = getattr(load_entry(entry_of(file)), function, None)
        if not callable(build):
            raise InputError(f"{file.name} has no function {function!r}; define it there")
        found = build(facts, situation_from(request["situation"]))
        return _as_json(found)
    except InputError:
        raise
    except BaseException as error:  # whatever it is, the user's code has raised it
        raise InputError(placed_line_of(error)) from error


def _as_json(found: object) -> dict[str, Any]:
    """A list of rules, or all that a `Sync` has; rules are `SyncRule` or objects with its keys."""
    if isinstance(found, Sync):
        return found.body()
    body = found if isinstance(found, dict) else {"rules": found}
    rules = body.get("rules", ())
    if not isinstance(rules, list | tuple):
        raise InputError(f"it returned {repr(found)[:MOST_SHOWN]}, which is no list of rules")
    plain = [
        asdict(one) if is_dataclass(one) and not isinstance(one, type) else one for one in rules
    ]
    body = {**body, "rules": plain}
    try:
        json.dumps(body, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"it returned {repr(found)[:MOST_SHOWN]}: {error}") from error
    return body


def main(arguments: list[str]) -> int:
    """The command, which takes no arguments; see the top of the file."""
    with one_answer() as answer:
        try:
            answer(asked(json.loads(sys.stdin.read())))
        except InputError as error:
            answer({"error": str(error)})
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
