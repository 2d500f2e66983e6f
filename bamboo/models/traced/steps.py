"""Computes the calls of a traced layer with torch's own operations.

Rule: an operation is found by its name in `torch.ops`, or among those of whole numbers; nothing of
what is read is run as code.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bamboo.models.traced.graph import EVAL, NO_GRAD, NORM, TRAIN, Call, Graph, values_in

NUMBERS = {"operator": operator, "math": math, "torch": torch}
"""Modules with operations of numbers, such as sizes."""


@dataclass(slots=True)
class Now:
    """One forward in progress."""

    values: dict[int, Any]
    tensors: Mapping[str, Tensor]
    device: torch.device
    training: bool


Argument = Callable[[Now], Any]


class Steps:
    """A graph that can be computed any number of times."""

    def __init__(self, graph: Graph, *, norms: Mapping[str, nn.Module]) -> None:
        self._inputs = graph.inputs
        self._outputs = graph.outputs
        last: dict[int, int] = {}
        for place, call in enumerate(graph.calls):
            last |= dict.fromkeys(values_in([call.args, call.kwargs]), place)
            last.setdefault(call.out, place)
        freed: dict[int, list[int]] = {}
        for value, place in last.items():
            if value not in graph.outputs:
                freed.setdefault(place, []).append(value)
        self._steps = [
            (call.out, _step(call, norms), tuple(freed.get(place, ())), call.mode)
            for place, call in enumerate(graph.calls)
        ]

    def run(
        self,
        inputs: Sequence[Any],
        tensors: Mapping[str, Tensor],
        *,
        device: torch.device,
        training: bool,
    ) -> list[Any]:
        """The outputs. A value is let go after its last use."""
        now = Now(dict(zip(self._inputs, inputs, strict=True)), tensors, device, training)
        other = EVAL if training else TRAIN
        for out, step, freed, mode in self._steps:
            if mode != other:
                now.values[out] = step(now)
            for value in freed:
                now.values.pop(value, None)
        return [now.values[value] for value in self._outputs]


def operation_of(name: str) -> Callable[..., Any]:
    """The operation of this name. Raises ValueError where this process knows none."""
    space, _, rest = name.partition(".")
    found: Any = NUMBERS.get(space) or getattr(torch.ops, space)
    try:
        for part in rest.split("."):
            found = getattr(found, part)
    except AttributeError:
        found = None
    of_torch = isinstance(found, torch._ops.OpOverload)
    if not (of_torch or space in ("operator", "math") or rest.startswith("sym_")):
        raise ValueError(
            f"there is no operation {name}; import the library that has it in the model's file"
        )
    operation: Callable[..., Any] = found
    return operation


def schema_of(name: str) -> Any:
    """The names and defaults of the arguments of an operation of torch."""
    return getattr(operation_of(name), "_schema")  # noqa: B009


def _step(call: Call, norms: Mapping[str, nn.Module]) -> Callable[[Now], Any]:
    if call.within is not None:
        return _within(call, Steps(call.within, norms=norms))
    if call.op == NORM:
        norm, (argument,) = norms[call.args[0]], map(_argument, call.args[1:])
        return lambda now: norm(argument(now))
    operation = operation_of(call.op)
    args = [_argument(part) for part in call.args]
    kwargs = {name: _argument(part) for name, part in call.kwargs.items()}
    if not kwargs:
        return lambda now: operation(*[part(now) for part in args])
    return lambda now: operation(
        *[part(now) for part in args], **{name: part(now) for name, part in kwargs.items()}
    )


def _within(call: Call, steps: Steps) -> Callable[[Now], Any]:
    inputs, *settings = map(_argument, call.args)

    def scope(now: Now) -> AbstractContextManager[Any]:
        given = [setting(now) for setting in settings]
        if call.op == NO_GRAD:
            return torch.set_grad_enabled(given[0])
        dtype, enabled, cached = given
        return torch.autocast(now.device.type, dtype, enabled=enabled, cache_enabled=cached)

    def run(now: Now) -> list[Any]:
        with scope(now):
            return steps.run(inputs(now), now.tensors, device=now.device, training=now.training)

    return run


def _argument(part: Any) -> Argument:
    if isinstance(part, list | tuple):
        inner = [_argument(one) for one in part]
        return lambda now: [one(now) for one in inner]
    if not isinstance(part, Mapping):
        return lambda now: part
    ((kind, what), *_) = part.items()
    if kind == "v":
        return lambda now: now.values[what]
    if kind == "p":
        return lambda now: now.tensors[what]
    if kind == "d":
        return lambda now: now.device
    if kind == "t":
        found = getattr(torch, what)
        return lambda now: found
    trained, evaluated = _argument(part["train"]), _argument(part["eval"])
    return lambda now: trained(now) if now.training else evaluated(now)
