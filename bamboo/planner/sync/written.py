"""Facts of parameters and a situation as JSON, for files and for processes.

Rule: what is read is checked like what a file of a user holds: anything else raises ValueError.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import pairwise
from math import isnan, prod
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


_WHOLE = ("microbatches", "factor_bytes")
_WHOLES = ("cut", "shares", "zones", "spare_bytes")
_FIGURES = (
    *("latency_s", "bytes_per_s", "node_bytes_per_s", "billed_s_per_byte", "flops_per_s"),
    *("added_per_s", "written_per_s", "copied_bytes_per_s", "message_s"),
)
_BY_STAGE = ("ends_s", "busy_s", "after_s", "spare_bytes")
_TIMES = ("ends_s", "passed_s", "busy_s", "after_s")
_FLAGS = ("replica", "sums_early")


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
    for name, figure in found.items():
        if not _may_be(name, figure):
            raise ValueError(f"a situation has no {name} {str(figure)[:80]}")
    lists = {name: tuple(one) for name, one in found.items() if isinstance(one, list | tuple)}
    if "sources" in lists:
        lists["sources"] = tuple((str(name), str(where)) for name, where in lists["sources"])
    far = found.get("far")
    try:
        if "slow" in lists:
            lists["slow"] = tuple(Slow(**one) for one in lists["slow"])
        link = None if far is None else Link(**far)
        made = Situation(**{**found, **lists, "far": link})
    except TypeError as error:
        raise ValueError(f"this is no situation: {error}") from error
    if len(made.cut) < 2 or made.cut[0] or any(a >= b for a, b in pairwise(made.cut)):
        raise ValueError(f"{str(made.cut)[:80]} is no cut")
    counts = {**dict.fromkeys(_BY_STAGE, made.stages), "passed_s": made.cut[-1]}
    for name, count in counts.items():
        if len(getattr(made, name)) not in (0, count):
            raise ValueError(f"{len(getattr(made, name))} figures of {name}, in place of {count}")
    return made


def _may_be(name: str, figure: Any) -> bool:
    """Whether a field of a situation may be this, as far as its type says."""
    if name in _WHOLE:
        return _is_whole(figure) and figure > 0
    if name in _FIGURES:
        return _is_figure(figure) and figure >= 0
    if name in _FLAGS:
        return isinstance(figure, bool)
    if name in _WHOLES or name in _TIMES:
        each = _is_whole if name in _WHOLES else _is_figure
        return isinstance(figure, list | tuple) and all(map(each, figure))
    return isinstance(figure, list | tuple) or (
        name == "far" and isinstance(figure, Mapping | None)
    )


def _is_whole(figure: Any) -> bool:
    return type(figure) is int and 0 <= figure < MOST_ELEMENTS


def _is_figure(figure: Any) -> bool:
    return type(figure) in (int, float) and not isnan(figure)


def _object(raw: Any, of: type) -> dict[str, Any]:
    names = {field.name for field in fields(of)}
    if not isinstance(raw, Mapping) or not set(raw) <= names:
        raise ValueError(f"{str(raw)[:80]!r} has not the fields {', '.join(sorted(names))}")
    return dict(raw)
