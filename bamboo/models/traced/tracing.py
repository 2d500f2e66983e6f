"""Traces a module, cuts its graph, and compares the cut one with the module itself.

Rule: what differs is refused. A trace that silently computes something else, as where a function
has a backward of its own, would train another model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor, nn

from bamboo.models.draws import keyed_draws
from bamboo.models.running import Tensors, unpacked
from bamboo.models.traced.export import Exported, Untraceable, exported, in_eval_mode
from bamboo.models.traced.graph import EVAL, TRAIN, Call, names_in, renumbered
from bamboo.models.traced.layer import Drawn, Factory, checksum
from bamboo.models.traced.layers import planned
from bamboo.models.traced.places import cuts_of
from bamboo.models.traced.plan import LayerPlan
from bamboo.models.traced.steps import schema_of
from bamboo.user_code.traces import line_of

ROUNDING = 1e-5
"""Of the largest value: how far the cut model may be from the module, where other kernels run."""
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
    """The two modes have no call in common here."""


def _with_both(found: Exported, evaluated: Exported) -> tuple[Exported, str]:
    """(the graph of both modes, ""); where they return something else, (that of train mode, the
    line of what is returned)."""
    both = _Both(found, evaluated)
    if [both.same.get(value) for value in evaluated.graph.outputs] == [*found.graph.outputs]:
        return both.merged(), ""
    return found, next((line for line in reversed(evaluated.lines) if line), "its end")


class _Both:
    """One graph of two: what both modes compute, with arguments that may differ, and between it
    what one of them computes alone, such as a mask that is drawn."""

    def __init__(self, found: Exported, evaluated: Exported) -> None:
        self._found = found
        self._evaluated = evaluated
        self._calls: list[Call] = []
        self._facts = dict(found.facts)
        self._written: dict[int, frozenset[int]] = {}
        self._modules: list[str] = []
        self._lines: list[str] = []
        self.same = dict(zip(evaluated.graph.inputs, found.graph.inputs, strict=True))
        """Value in eval mode -> that value here."""
        ours, theirs = ([*map(_token, of.graph.calls, of.modules)] for of in (found, evaluated))
        matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
        for kind, i, i_end, j, j_end in matcher.get_opcodes():
            if kind == "equal":
                for one, other in zip(range(i, i_end), range(j, j_end), strict=True):
                    self._in_both(one, other)
                continue
            for one in range(i, i_end):
                self._in_training(one)
            for other in range(j, j_end):
                self._in_evaluating(other)

    def merged(self) -> Exported:
        return replace(
            self._found,
            graph=replace(self._found.graph, calls=self._calls),
            facts=self._facts,
            written=self._written,
            modules=self._modules,
            lines=self._lines,
            tensors={**self._evaluated.tensors, **self._found.tensors},
        )

    def _in_both(self, one: int, other: int) -> None:
        call = self._found.graph.calls[one]
        there = self._evaluated.graph.calls[other]
        try:
            both = _both_calls(call, self._renumbered(there))
        except _Differs:
            self._in_training(one)
            self._in_evaluating(other)
            return
        self.same[there.out] = call.out
        facts, memory = self._facts[call.out], self._memory(self._evaluated.facts[there.out].memory)
        self._facts[call.out] = replace(facts, memory=facts.memory | memory)
        nothing: frozenset[int] = frozenset()
        written = self._memory(self._evaluated.written.get(other, nothing))
        self._add(self._found, one, both, self._found.written.get(one, nothing) | written)

    def _in_training(self, one: int) -> None:
        call = replace(self._found.graph.calls[one], mode=TRAIN)
        self._add(self._found, one, call, self._found.written.get(one, frozenset()))

    def _in_evaluating(self, other: int) -> None:
        call = self._renumbered(self._evaluated.graph.calls[other])
        number = self.same[call.out] = max(self._facts) + 1
        facts = self._evaluated.facts[call.out]
        self._facts[number] = replace(facts, memory=self._memory(facts.memory))
        written = self._memory(self._evaluated.written.get(other, frozenset()))
        self._add(self._evaluated, other, replace(call, out=number, mode=EVAL), written)

    def _add(self, of: Exported, place: int, call: Call, written: frozenset[int]) -> None:
        if written:
            self._written[len(self._calls)] = written
        self._calls.append(call)
        self._modules.append(of.modules[place])
        self._lines.append(of.lines[place])

    def _renumbered(self, call: Call) -> Call:
        args, kwargs = (renumbered(part, self.same) for part in (call.args, call.kwargs))
        return replace(call, args=args, kwargs=kwargs)

    def _memory(self, values: frozenset[int]) -> frozenset[int]:
        return frozenset(self.same[value] for value in values)


def _token(call: Call, module: str) -> tuple[str, tuple[str, ...], str]:
    """What two calls of both modes have in common."""
    return call.op, tuple(names_in([call])), module


def _both_calls(train: Call, evaluated: Call) -> Call:
    if train.within != evaluated.within:
        raise _Differs
    names = {**train.kwargs, **evaluated.kwargs}
    count = max(len(train.args), len(evaluated.args))
    return replace(
        train,
        args=_either(_filled(train, count), _filled(evaluated, count)),
        kwargs={name: _either(_named(train, name), _named(evaluated, name)) for name in names},
    )


def _either(train: Any, evaluated: Any) -> Any:
    if train == evaluated:
        return train
    if isinstance(train, list) and isinstance(evaluated, list) and len(train) == len(evaluated):
        return [_either(a, b) for a, b in zip(train, evaluated, strict=True)]
    if isinstance(train, list) or isinstance(evaluated, list):
        raise _Differs
    return {TRAIN: train, EVAL: evaluated}


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
