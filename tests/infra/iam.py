"""A small judge of IAM policies: whether one request is allowed by a document. Pure.

It knows what the documents of terraform/policies/ use, after the IAM user guide's "Policy
evaluation logic", and refuses what it does not know: a rule read as less than it says would be a
right that nobody tested. `rendered` fills in a template the way `templatefile` does.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

Value = str | Sequence[str]
_STATEMENT_KEYS = {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}
_PLACE = re.compile(r"\$\{(?:(jsonencode)\()?([^(){}]+)\)?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request as the service puts it before the judge; keys of `context` are case-insensitive
    in IAM, here they are written as the documents write them."""

    action: str
    resource: str = "*"
    context: Mapping[str, Value] = field(default_factory=dict)


def rendered(template: str, values: Mapping[str, Value]) -> dict[str, Any]:
    """The document of a template: `${name}` and `${jsonencode(name)}` are filled in. Raises
    KeyError for a name without a value."""

    def fill(found: re.Match[str]) -> str:
        value = values[found[2]]
        return json.dumps(value) if found[1] else str(value)

    document = json.loads(_PLACE.sub(fill, template))
    assert isinstance(document, dict)
    return document


def allowed(document: Mapping[str, Any], ask: Ask) -> bool:
    """Whether the document allows it: some statement does, and none forbids it."""
    effects = {s["Effect"] for s in document["Statement"] if _speaks_of(s, ask)}
    return effects == {"Allow"}


def _speaks_of(statement: Mapping[str, Any], ask: Ask) -> bool:
    unknown = statement.keys() - _STATEMENT_KEYS
    if unknown:
        raise NotImplementedError(f"statements with {sorted(unknown)} are not read here")
    actions, resources = _listed(statement["Action"]), _listed(statement["Resource"])
    return (
        any(like(pattern.lower(), ask.action.lower()) for pattern in actions)
        and any(like(pattern, ask.resource) for pattern in resources)
        and all(
            _holds(operator, _listed(wanted), ask.context.get(key))
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


def _holds(operator: str, wanted: Sequence[str], given: Value | None) -> bool:
    match operator:
        case "ForAllValues:StringEquals":
            # Without a value there is none that fails: such a condition alone demands nothing.
            return set(_listed(given or ())) <= set(wanted)
        case "StringEquals" | "Bool":
            return given in wanted
        case "StringLike":
            return isinstance(given, str) and any(like(pattern, given) for pattern in wanted)
    raise NotImplementedError(f"the operator {operator} is not read here")


def _listed(value: Value) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def like(pattern: str, text: str) -> bool:
    """Whether a text is of a pattern with IAM's `*` and `?`."""
    return _expression(pattern).fullmatch(text) is not None


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"([*?])", pattern)
    regex = "".join({"*": ".*", "?": "."}.get(part, re.escape(part)) for part in parts)
    return re.compile(regex, re.DOTALL)
