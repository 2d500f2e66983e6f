"""The state of layers: its names, shapes and types. All that sends, stores or compares state takes
them from here.

    param/<layer>.<name>     each parameter
    <kind>/<layer>.<name>    the optimizer's tensors of a trained parameter, such as exp_avg
    buffer/<layer>.<name>    each buffer

Rule: the order is the same everywhere: parameters, the optimizer's kinds in the order of their
names, buffers; each of them in global order. So the state of one layer has the same order whether
it is taken out of a stage's or stands alone.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from bamboo.models import Untrained, named_parameters
from bamboo.runtime.device.devices import Device
from bamboo.runtime.device.on_host import moved
from bamboo.runtime.device.staging import HOST

PARAM, BUFFER = "param", "buffer"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """What an optimizer keeps of each trained parameter."""

    tensors: dict[str, dict[str, Tensor]]
    """Kind -> tensor, by the parameter's global name, in global order."""
    on_host: bool = False
    """Whether they are kept in the host's memory, and are on the device during a step alone."""

    def moved(self, device: Device, *, on_host: bool) -> "OptimizerState":
        """The same, kept on the host or on the device."""
        flat = [tensor for own in self.tensors.values() for tensor in own.values()]
        there = iter(moved(device, flat, to_host=on_host))
        tensors = {name: {kind: next(there) for kind in own} for name, own in self.tensors.items()}
        return OptimizerState(tensors=tensors, on_host=on_host)


def named_state(
    params: Mapping[str, T], kept: Mapping[str, Mapping[str, T]], buffers: Mapping[str, T]
) -> dict[str, T]:
    """All of a state under its full names, in order. Each argument is by global name, in global
    order; `kept` has the optimizer's part of each trained parameter, by kind."""
    kinds = sorted({kind for own in kept.values() for kind in own})
    return {
        **{f"{PARAM}/{name}": x for name, x in params.items()},
        **{f"{k}/{name}": own[k] for k in kinds for name, own in kept.items() if k in own},
        **{f"{BUFFER}/{name}": x for name, x in buffers.items()},
    }


class Form(NamedTuple):
    """What a tensor is before there is memory for it."""

    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The state of some layers, without memory. Each field is by global name, in global order."""

    params: Mapping[str, Form]
    kept: Mapping[str, Mapping[str, Form]]
    """The optimizer's part of each trained parameter, by kind; a frozen one is not in it."""
    buffers: Mapping[str, Form] = field(default_factory=dict)
    momenta: Mapping[str, float] = field(default_factory=dict)
    """Of the batch norms, see `BatchNorms`."""
    constant: frozenset[str] = frozenset()
    """The full names of what never changes: frozen parameters and most buffers."""

    @property
    def trained_bytes(self) -> int:
        """Bytes of the trained parameters alone."""
        return sum(_bytes_of(self.params[name]) for name in self.kept)

    @property
    def frozen_bytes(self) -> int:
        """Bytes of frozen parameters and buffers."""
        held = sum(map(_bytes_of, (*self.params.values(), *self.buffers.values())))
        return held - self.trained_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of the optimizer's part."""
        return sum(_bytes_of(form) for own in self.kept.values() for form in own.values())

    def room(self, place: torch.device, *, on_host: bool) -> dict[str, Tensor]:
        """Memory for it at `place`, by full name and in order. It is not initialised. `on_host`:
        the optimizer's part lies on the host."""
        there = HOST if on_host else place

        def empty(form: Form, device: torch.device) -> Tensor:
            return torch.empty(form.shape, dtype=form.dtype, device=device)

        return named_state(
            {name: empty(form, place) for name, form in self.params.items()},
            {n: {k: empty(form, there) for k, form in own.items()} for n, own in self.kept.items()},
            {name: empty(form, place) for name, form in self.buffers.items()},
        )

    def optimizer_state(self, held: Mapping[str, Tensor], *, on_host: bool) -> OptimizerState:
        """The optimizer's part of a state that is held by full name: the tensors themselves."""
        tensors = {
            name: {kind: held[f"{kind}/{name}"] for kind in own} for name, own in self.kept.items()
        }
        return OptimizerState(tensors=tensors, on_host=on_host)


def layout_of(
    layers: Iterable[tuple[int, nn.Module]],
    kept: Callable[[torch.Size], Mapping[str, torch.Size]],
) -> Layout:
    """The state of these layers, given as (global index, layer). `kept` tells an optimizer's
    tensors of a parameter of some shape, by kind; all of them are float32."""
    layers = list(layers)
    named, own = named_parameters(layers), Untrained(layers)
    return Layout(
        params={name: Form(p.shape, p.dtype) for name, p in named},
        kept={
            name: {kind: Form(shape, torch.float32) for kind, shape in kept(p.shape).items()}
            for name, p in named
            if p.requires_grad
        },
        buffers={name: Form(b.shape, b.dtype) for name, b in own.buffers.items()},
        momenta=own.norms.momenta,
        constant=own.constant,
    )


def _bytes_of(form: Form) -> int:
    return form.shape.numel() * form.dtype.itemsize


def values_in(held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters and buffers of a state that is held by full name, by global name."""
    split = ((*name.partition("/"), tensor) for name, tensor in held.items())
    return {name: tensor for kind, _, name, tensor in split if kind in (PARAM, BUFFER)}
