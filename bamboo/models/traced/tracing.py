"""Traces a module, cuts its graph, and compares the cut one with the module itself.

Rule: what differs is refused. A trace that silently computes something else, as where a function
has a backward of its own, would train another model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bamboo.models.draws import keyed_draws
from bamboo.models.running import Tensors, unpacked
from bamboo.models.traced.export import Exported, Untraceable, exported, in_eval_mode
from bamboo.models.traced.graph import Call, Graph, renumbered, values_in
from bamboo.models.traced.layer import Drawn, Factory, checksum
from bamboo.models.traced.layers import planned
from bamboo.models.traced.places import cuts_of
from bamboo.models.traced.plan import LayerPlan
from bamboo.models.traced.steps import schema_of
from bamboo.user_code.traces import line_of

ROUNDING = 1e-5
"""Of the largest value: how far the cut model may be from the module, where other kernels run."""
CONTIGUOUS = "aten.contiguous.default"
OTHER_DRAWS = 2
"""The key of what is drawn in the comparison; the trace had another one."""
ITSELF = 'return a list of layers and leave out split = "trace"'

__all__ = ["Untraceable", "trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A module that was traced and cut."""

    plans: list[LayerPlan]
    tensors: Mapping[str, Tensor]
    """Values of buffers and constants, by name."""
    sums: Mapping[str, int]
    """Checksums of the initial values of parameters, by name."""
    equal: bool
    """Whether outputs and gradients have the module's own bits; else they are near."""


def trace(drawn: Drawn, samples: Sequence[Tensors]) -> Traced:
    """Trace the module that is drawn. `samples`: inputs of some microbatches, which may differ in
    their sizes. Raises Untraceable."""
    module = drawn.module()
    inputs = samples[0]
    varying = [
        {0} | {d for d in range(x.dim()) if len({s[i].shape[d] for s in samples}) > 1}
        for i, x in enumerate(inputs)
    ]
    found = exported(module, inputs, varying)
    with in_eval_mode(module):
        evaluated = exported(module, inputs, varying)
    found, train_only = _with_both(found, evaluated)
    tensors = _tensors_of(module, found)
    plans = planned(module, found, cuts_of(found), train_only)
    sums = {name: checksum(p) for name, p in module.named_parameters()}
    layers = [Factory(plan, tensors, drawn)() for plan in plans]
    try:
        equal = _compare_training(module, layers, plans, inputs)
        if not train_only:
            _compare_evaluating(module, layers, found, inputs)
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        problem = f"it fails outside of a trace, or its layers do ({line_of(error)})"
        raise Untraceable(problem, ITSELF) from error
    return Traced(plans=plans, tensors=tensors, sums=sums, equal=equal)


def _tensors_of(module: nn.Module, found: Exported) -> dict[str, Tensor]:
    named = dict(module.named_buffers(remove_duplicate=False)) | dict(found.tensors)
    return {name: value.detach().clone().contiguous() for name, value in named.items()}


# ---------------------------------------------------------------------- both modes


class _Differs(Exception):
    """The two modes compute something else at this call."""


def _with_both(found: Exported, evaluated: Exported) -> tuple[Exported, str]:
    """(the graph for both modes, ""), where they differ in numbers alone, such as the probability
    of a dropout; else (that of train mode, what differs)."""
    try:
        return replace(found, graph=_both(found.graph, evaluated.graph)), ""
    except _Differs as differs:
        (place,) = differs.args
        lines = [of.lines[place] for of in (evaluated, found) if place < len(of.lines)]
        return found, next((line for line in lines if line), "its end")


def _both(train: Graph, evaluated: Graph) -> Graph:
    """Raises _Differs with the place of the call in the graph of train mode."""
    calls: list[Call] = []
    same = dict(zip(evaluated.inputs, train.inputs, strict=True))
    others = iter(evaluated.calls)
    other = next(others, None)
    for place, one in enumerate(train.calls):
        if one.op == CONTIGUOUS and (other is None or other.op != CONTIGUOUS):
            # A trace leaves it out where its input lies in order, as after another kernel.
            (given,) = values_in(one.args)
            same |= {value: one.out for value, there in same.items() if there == given}
            calls.append(one)
            continue
        if other is None or one.op != other.op:
            raise _Differs(place)
        try:
            args, kwargs = (renumbered(part, same) for part in (other.args, other.kwargs))
            calls.append(_both_calls(one, replace(other, args=args, kwargs=kwargs)))
        except _Differs:
            raise _Differs(place) from None
        same[other.out] = one.out
        other = next(others, None)
    if other is not None or [*train.outputs] != [same[value] for value in evaluated.outputs]:
        raise _Differs(len(calls))
    return replace(train, calls=calls)


def _both_calls(train: Call, evaluated: Call) -> Call:
    within = None
    if train.within is not None and evaluated.within is not None:
        within = _both(train.within, evaluated.within)
    names = {**train.kwargs, **evaluated.kwargs}
    count = max(len(train.args), len(evaluated.args))
    return replace(
        train,
        args=_either(_filled(train, count), _filled(evaluated, count)),
        kwargs={name: _either(_named(train, name), _named(evaluated, name)) for name in names},
        within=within,
    )


def _either(train: Any, evaluated: Any) -> Any:
    if train == evaluated:
        return train
    if isinstance(train, list) and isinstance(evaluated, list) and len(train) == len(evaluated):
        return [_either(a, b) for a, b in zip(train, evaluated, strict=True)]
    if isinstance(train, Mapping | list) or isinstance(evaluated, Mapping | list):
        raise _Differs
    return {"train": train, "eval": evaluated}


def _filled(call: Call, count: int) -> list[Any]:
    """The arguments, with those that are left out."""
    rest = range(len(call.args), count)
    return [*call.args, *(schema_of(call.op).arguments[i].default_value for i in rest)]


def _named(call: Call, name: str) -> Any:
    if name in call.kwargs:
        return call.kwargs[name]
    return next(x.default_value for x in schema_of(call.op).arguments if x.name == name)


# ---------------------------------------------------------------------- against the module itself


def _compare_training(
    module: nn.Module, layers: Sequence[nn.Module], plans: Sequence[LayerPlan], inputs: Tensors
) -> bool:
    """One forward and backward of both, with the same draws. Returns whether all bits are equal."""
    theirs = _outputs(lambda: module(*inputs))
    ours = _outputs(lambda: run_plainly(layers, inputs))
    equal = _compare("output", theirs, ours)
    _back(theirs)
    _back(ours)
    found: dict[str, Tensor] = {}
    for plan, layer in zip(plans, layers, strict=True):
        for held in plan.parameters:
            gradient = layer.get_parameter(held.name).grad
            if gradient is not None and not held.same:
                found[held.of] = found[held.of] + gradient if held.of in found else gradient
    for name, parameter in module.named_parameters():
        wanted, here = parameter.grad, found.get(name)
        if wanted is not None or here is not None:
            zero = torch.zeros_like(parameter)
            equal &= _compare(
                f"gradient of {name!r}",
                (zero if wanted is None else wanted,),
                (zero if here is None else here,),
            )
    return equal


def _compare_evaluating(
    module: nn.Module, layers: Sequence[nn.Module], found: Exported, inputs: Tensors
) -> None:
    """One forward of both in eval mode; where the code leaves the number of samples open, of one
    sample less."""
    shapes = [found.facts[value].shape for value in found.graph.inputs]
    if all(isinstance(shape[0], str) for shape in shapes) and len(inputs[0]) > 1:
        inputs = tuple(x[:-1] for x in inputs)
    with in_eval_mode(module), torch.no_grad():
        theirs = _outputs(lambda: module(*inputs))
    for layer in layers:
        layer.eval()
    with torch.no_grad():
        ours = _outputs(lambda: run_plainly(layers, inputs))
    _compare("output in eval mode", theirs, ours)


def run_plainly(layers: Sequence[nn.Module], inputs: Tensors) -> Any:
    """The layers one after the other, without a boundary between them."""
    x: Any = unpacked(inputs)
    for layer in layers:
        x = layer(x)
    return x


def _outputs(forward: Callable[[], Any]) -> Tensors:
    with keyed_draws(OTHER_DRAWS):
        out = forward()
    return out if isinstance(out, tuple) else (out,)


def _back(outputs: Tensors) -> None:
    trained = [t for t in outputs if t.requires_grad]
    with keyed_draws(OTHER_DRAWS):
        gradients = [torch.randn_like(t) for t in trained]
    torch.autograd.backward(trained, gradients)


def _compare(what: str, theirs: Tensors, ours: Tensors) -> bool:
    """Whether the bits are equal. Raises Untraceable where they are further apart than rounding."""
    equal = True
    for wanted, here in zip(theirs, ours, strict=True):
        if torch.equal(wanted, here):
            continue
        equal, wanted, here = False, wanted.detach(), here.detach()
        scale = float(wanted.abs().max())
        off = math.inf if wanted.shape != here.shape else float((here - wanted).abs().max())
        if not off <= ROUNDING * scale:
            raise Untraceable(
                f"its {what} is {off:.3g} away from the module's own (largest value {scale:.3g}) "
                "once it is traced: a trace has no backward of a torch.autograd.Function, and "
                "draws no numbers of Python or NumPy in forward",
                f"write it in operations of torch, or {ITSELF}",
            )
    return equal
