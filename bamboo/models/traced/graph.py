"""What a traced model computes, as values that JSON can hold.

{"v": 7}                   the value of call 7, or the model's input of that number
{"p": "head.weight"}       a parameter or a buffer, by its name in the module
{"train": x, "eval": y}    x in train mode, y in eval mode
{"t": "float32"}           torch's object of that name
{"d": 0}                   the device on which the layer runs
[...], numbers, text       themselves
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

NORM = "norm"
"""The operation that calls a batch norm, whose first argument is its path."""
TRAIN, EVAL = "train", "eval"
NO_GRAD = "grad"
AUTOCAST = "autocast"
"""Operations that compute a graph of their own without gradients, or with other types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operation."""

    out: int
    """The number of its value."""
    op: str
    """`aten.linear.default`, `operator.mul`, or one of those above."""
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    mode: str = ""
    """`TRAIN` or `EVAL`, where it is computed in one mode alone."""
    within: "Graph | None" = None
    """What `NO_GRAD` and `AUTOCAST` compute; its inputs are the arguments in `args[0]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operations in order."""

    inputs: Sequence[int]
    calls: Sequence[Call]
    outputs: Sequence[int]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Graph":
        calls = [
            Call(**{**call, "within": call["within"] and cls.from_dict(call["within"])})
            for call in raw["calls"]
        ]
        return cls(inputs=raw["inputs"], calls=calls, outputs=raw["outputs"])


def values_in(argument: Any) -> Iterator[int]:
    """The numbers of the values that an argument has."""
    return (part["v"] for part in _parts(argument) if "v" in part)


def names_in(calls: Sequence[Call]) -> Iterator[str]:
    """The parameters and buffers that these calls name."""
    for call in calls:
        yield from (part["p"] for part in _parts([call.args, call.kwargs]) if "p" in part)


def renamed(argument: Any, names: Mapping[str, str]) -> Any:
    """The argument with other names of parameters."""
    if isinstance(argument, Mapping):
        if "p" in argument:
            return {"p": names.get(argument["p"], argument["p"])}
        return {key: renamed(part, names) for key, part in argument.items()}
    if isinstance(argument, list | tuple):
        return [renamed(part, names) for part in argument]
    return argument


def renumbered(argument: Any, numbers: Mapping[int, int]) -> Any:
    """The argument with other numbers of values."""
    if isinstance(argument, Mapping):
        if "v" in argument:
            return {"v": numbers[argument["v"]]}
        return {key: renumbered(part, numbers) for key, part in argument.items()}
    if isinstance(argument, list | tuple):
        return [renumbered(part, numbers) for part in argument]
    return argument


def _parts(argument: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(argument, Mapping):
        yield argument
        for part in argument.values():
            yield from _parts(part)
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from _parts(part)
