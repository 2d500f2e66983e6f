"""One layer of a traced model, and how it gets its values.

Rule: a layer needs its plan alone, and no line of the user's code. Parameters that are not known
yet begin with the values that the user's module draws, which is made for that once.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bamboo.errors import InputError
from bamboo.models.draws import keyed_draws
from bamboo.models.traced.plan import LayerPlan
from bamboo.models.traced.steps import Steps

Values = Any
"""A tensor, or a flat tuple of several: what one layer hands to the next one."""


class Drawn:
    """The initial values of all parameters, by name. They are let go once a layer runs."""

    def __init__(self, make: Callable[[], nn.Module], seed: int) -> None:
        self._make = make
        self._seed = seed
        self._values: dict[str, Tensor] = {}
        self.sums: Mapping[str, int] = {}
        """Checksums of those at the launch; {}: this is the launch."""

    def module(self) -> nn.Module:
        """The user's module as it is made, in train mode."""
        with keyed_draws(self._seed):
            return self._make().train()

    def value(self, name: str) -> Tensor:
        """Raises InputError where it is not what it was at the launch."""
        if not self._values:
            self._values = {n: p.detach() for n, p in self.module().named_parameters()}
        value = self._values.get(name)
        if value is None:
            raise InputError(f"the module has no parameter {name!r}, and it had one at the launch")
        if self.sums and checksum(value) != self.sums[name]:
            raise InputError(
                f"the module draws other initial values of {name!r} than at the launch; draw them "
                "from the default generators of torch, random and numpy alone, and read no clock, "
                "address or environment"
            )
        return value

    def forget(self) -> None:
        self._values = {}


class Factory:
    """Makes one layer: whole, or without memory for parameters that are known."""

    def __init__(self, plan: LayerPlan, tensors: Mapping[str, Tensor], drawn: Drawn) -> None:
        self._plan = plan
        self._tensors = tensors
        self._drawn = drawn
        self._kind = type(plan.name, (TracedLayer,), {})
        self.alike = id(drawn)
        """The same for all layers of a model: one function makes them."""

    def __call__(self) -> "TracedLayer":
        held = (one for one in self._plan.parameters if not one.same)
        return self._made({one.name: self._drawn.value(one.of) for one in held})

    def shell(self) -> "TracedLayer":
        """The layer without memory for its parameters; buffers have their values."""
        return self._made(
            {
                held.name: torch.empty(held.shape, dtype=getattr(torch, held.dtype), device="meta")
                for held in self._plan.parameters
                if not held.same
            }
        )

    def _made(self, values: Mapping[str, Tensor]) -> "TracedLayer":
        made: TracedLayer = self._kind(self._plan, values, self._tensors, self._drawn.forget)
        return made


class TracedLayer(nn.Module):
    """A layer. Its tensors are in modules of the names that they have in the whole one."""

    def __init__(
        self,
        plan: LayerPlan,
        values: Mapping[str, Tensor],
        tensors: Mapping[str, Tensor],
        begun: Callable[[], None],
    ) -> None:
        """`tensors`: values of buffers; `begun` is called before it runs for the first time."""
        super().__init__()
        self._plan = plan
        self._begun: Callable[[], None] | None = begun
        for held in plan.parameters:
            owner, short = self._owner(held.name)
            if held.same:
                owner.register_parameter(short, self.get_parameter(held.same))
                continue
            value = values[held.name].clone()
            owner.register_parameter(short, nn.Parameter(value, requires_grad=held.trained))
        for held in plan.buffers:
            owner, short = self._owner(held.name)
            owner.register_buffer(short, tensors[held.name].clone(), persistent=held.saved)
        self._places = [
            (held.name, *self._owner(held.name)) for held in (*plan.parameters, *plan.buffers)
        ]
        norms = {path: self.get_submodule(path) for path in plan.norms}
        self._steps = Steps(plan.graph, norms=norms)

    def forward(self, x: Values) -> Values:
        if self._begun is not None:
            self._begun()
            self._begun = None
        if self._plan.train_only and not self.training:
            raise ValueError(
                "the model computes something else in eval mode, and it is traced in train mode "
                f"(at {self._plan.train_only}); leave out [eval], or compute the same in both"
            )
        inputs = x if isinstance(x, tuple) else (x,)
        self._check(inputs)
        out = self._steps.run(
            inputs,
            {name: getattr(owner, short) for name, owner, short in self._places},
            device=inputs[0].device,
            training=self.training,
        )
        return out[0] if len(out) == 1 else tuple(out)

    def _check(self, inputs: tuple[Tensor, ...]) -> None:
        plan = self._plan
        found = [(*x.shape,) for x in inputs]
        if len(found) != len(plan.shapes) or not all(
            len(here) == len(there)
            and all(b is None or a == b for a, b in zip(here, there, strict=True))
            for here, there in zip(found, plan.shapes, strict=True)
        ):
            raise ValueError(
                f"it was traced for inputs of shape {_said(plan.shapes)} and is given "
                f"{_said(found)}: its sizes are fixed by the code of the model; take samples of "
                "one shape, and whole microbatches in an evaluation"
            )

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        """The module that has this tensor, made if need be, and the last part of the name."""
        owner: nn.Module = self
        *path, short = name.split(".")
        for count, part in enumerate(path, start=1):
            if part not in owner._modules:
                settings = self._plan.norms.get(".".join(path[:count]))
                owner.add_module(part, nn.Module() if settings is None else _Norm(**settings))
            owner = owner.get_submodule(part)
        return owner, short


class _Norm(_BatchNorm):
    """A batch norm whose tensors are registered by its layer."""

    def __init__(self, num_features: int, eps: float, momentum: float) -> None:
        super().__init__(num_features, eps, momentum, affine=False, track_running_stats=True)
        for name in [*self._parameters]:
            del self._parameters[name]
        for name in [*self._buffers]:
            del self._buffers[name]

    def _check_input_dim(self, input: Tensor) -> None:
        """Its class did that while the module was traced."""


def checksum(value: Tensor) -> int:
    """Of the bits of a tensor on the CPU."""
    flat = value.detach().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0


def _said(shapes: Any) -> str:
    return ", ".join(
        "(" + ", ".join("any" if s is None else str(s) for s in x) + ")" for x in shapes
    )
