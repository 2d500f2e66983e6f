"""Facts of parameters and a situation as JSON, for files and for processes.

Rule: what is read is checked like what a file of a user holds: anything else raises ValueError.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from math import prod
from typing import Any

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.step.links import Link
from bamboo.planner.sync.situation import Situation, Slow

MOST_ELEMENTS = 2**53
_KINDS: Mapping[str, type] = {
    "name": str,
    "layer": int,
    "rows_k": int,
    "why_not": str,
    "trained": bool,
}


def facts_body(facts: ParameterFacts) -> dict[str, Any]:
    """The value for JSON."""
    return {**asdict(facts), "shape": list(facts.shape)}


def facts_from(raw: Any) -> ParameterFacts:
    """Read what `facts_body` wrote. Raises ValueError for anything else."""
    found = _object(raw, ParameterFacts)
    shape = found.get("shape")
    if not isinstance(shape, list) or not all(type(one) is int and one >= 0 for one in shape):
        raise ValueError(f"{shape!r} is no shape of a parameter")
    for name, kind in _KINDS.items():
        if name in found and type(found[name]) is not kind:
            raise ValueError(f"a parameter has no {name} {found[name]!r}")
    if max(prod(shape), found.get("rows_k", 0), found.get("layer", 0)) >= MOST_ELEMENTS:
        raise ValueError(f"no parameter is as large as {shape!r}")
    try:
        return ParameterFacts(**{**found, "shape": tuple(shape)})
    except TypeError as error:
        raise ValueError(f"these are no facts of a parameter: {error}") from error


def situation_body(situation: Situation) -> dict[str, Any]:
    """The value for JSON."""
    return asdict(situation)


def situation_from(raw: Any) -> Situation:
    """Read what `situation_body` wrote, which went through JSON. Raises ValueError for anything
    else."""
    found = _object(raw, Situation)
    lists = {name: tuple(one) for name, one in found.items() if isinstance(one, list | tuple)}
    if "sources" in lists:
        lists["sources"] = tuple((str(name), str(where)) for name, where in lists["sources"])
    far = found.get("far")
    try:
        if "slow" in lists:
            lists["slow"] = tuple(Slow(**one) for one in lists["slow"])
        link = None if far is None else Link(**far)
        return Situation(**{**found, **lists, "far": link})
    except TypeError as error:
        raise ValueError(f"this is no situation: {error}") from error


def _object(raw: Any, of: type) -> dict[str, Any]:
    names = {field.name for field in fields(of)}
    if not isinstance(raw, Mapping) or not set(raw) <= names:
        raise ValueError(f"{str(raw)[:80]!r} has not the fields {', '.join(sorted(names))}")
    return dict(raw)
