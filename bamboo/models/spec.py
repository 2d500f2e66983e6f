"""What a model is to the rest of the system: a plain list of layers, each built alone from a key.

Rule: nothing here knows stages or ranks. A layer's initial values and its randomness depend only on
the seed, the step, the global microbatch index and the layer's global index.

A parameter's global name is `<layer>.<name>`; global order is (layer, registration order).
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from bamboo.errors import InputError
from bamboo.models.draws import keyed_draws
from bamboo.topology.keys import keyed_seed

Loss = Callable[[Tensor, Tensor], Tensor]
"""(output of the last layer, targets_BT int64) -> float32 scalar: the SUM over the tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedParameter:
    """Parameter `user_name` of layer `user_layer` is the owner's parameter under another name.

    Each of the two layers keeps its own copy. Both step with the sum of both gradients, and that
    sum counts once, at the owner's place, in the clipping norm.
    """

    owner_layer: int
    owner_name: str
    user_layer: int
    user_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One factory per layer, in order; the output of a layer is the input of the next one.

    A factory draws initial values only from the generators that `draws` keys.
    """

    factories: tuple[Callable[[], nn.Module], ...]
    loss: Loss
    tied: tuple[TiedParameter, ...] = ()
    plain: bool = False
    """Whether layers have no tensors but their parameters, and keep nothing that was computed from
    them: then a layer whose parameters are known need not draw initial values."""


def build_layer(spec: ModelSpec, index: int, seed: int) -> nn.Module:
    """Layer `index` with its keyed initial values, the same on every machine that builds it.

    A tied user's copy gets the owner's initial value. All generators keep their state. Raises
    InputError when a tied parameter does not exist or has another shape than its owner.
    """
    layer = _build_alone(spec, index, seed)
    for tie in spec.tied:
        if tie.user_layer == index:
            owner = _parameter(_build_alone(spec, tie.owner_layer, seed), tie, tie.owner_name)
            user = _parameter(layer, tie, tie.user_name)
            if owner.shape != user.shape:
                raise InputError(
                    f"tied parameters {tie.owner_layer}.{tie.owner_name} {tuple(owner.shape)} and "
                    f"{tie.user_layer}.{tie.user_name} {tuple(user.shape)} differ in shape; "
                    "tie only parameters of one shape"
                )
            user.data.copy_(owner.data)
    return layer


def build_shell(spec: ModelSpec, index: int, seed: int) -> nn.Module:
    """Layer `index` for parameters that are known, which `put_parameters` sets. The layer of a
    plain model has no memory yet; that of any other model has its initial values."""
    if not spec.plain:
        return build_layer(spec, index, seed)
    with torch.device("meta"), _Undrawn():
        return spec.factories[index]().train()


class _Undrawn(TorchFunctionMode):
    """Leaves initial values undrawn. Without memory they would have no meaning, and the first draw
    on the meta device imports 800 modules: a second or two in the middle of a recovery."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS or getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


_DRAWS = (Tensor.normal_, Tensor.uniform_, Tensor.erfinv_)


def put_parameters(layer: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Make these the parameters of a layer, without a copy; `values` has all of them by name.
    Raises ValueError when one has another shape."""
    for name, parameter in list(layer.named_parameters()):
        value = values[name]
        if value.shape != parameter.shape:
            raise ValueError(f"{name} has shape {tuple(parameter.shape)}, not {tuple(value.shape)}")
        if parameter.is_meta:
            owner, _, short = name.rpartition(".")
            trained = parameter.requires_grad
            setattr(layer.get_submodule(owner), short, nn.Parameter(value, requires_grad=trained))
        else:
            parameter.data = value


def run_layers(
    layers: Sequence[tuple[int, nn.Module]],
    x: Tensor,
    again: Container[int] = (),
    /,
    *,
    seed: int,
    step: int,
    microbatch: int,
    precision: str = "fp32",
) -> Tensor:
    """Run consecutive layers, given as (global index, layer), on one microbatch.

    `precision` is `fp32`, or `bf16`: then each layer runs under autocast by itself, and what a
    layer returns is bfloat16 wherever a cut may be. (Micikevicius et al., 2018; autocast keeps no
    casted weights, which would depend on the layers that share the process.)

    Torch's default generator is seeded again for each layer from (seed, step, global microbatch
    index, global layer index), so dropout does not depend on which machine runs the layer. Raises
    TypeError when a layer returns anything but one tensor.

    The layers in `again` keep their input alone, and are computed again in the backward: under the
    same key, the same autocast and with a graph of their own in both, so all numbers are the same.
    """
    low = precision == "bf16"
    for index, layer in layers:
        key = keyed_seed(seed, "layer", step, microbatch, index)
        if index in again:
            y = checkpoint(
                _run_one, layer, x, key, low, use_reentrant=False, preserve_rng_state=False
            )
        else:
            y = _run_one(layer, x, key, low)
        if not isinstance(y, Tensor):
            raise TypeError(f"layer {index} returns {type(y).__name__}, not one tensor")
        # The layout is the same wherever a cut may be, in both directions: a received copy is
        # contiguous, and a matrix product of the same numbers in another layout may differ in its
        # last bit.
        x = (y.to(torch.bfloat16) if low and y.is_floating_point() else y).contiguous()
        if x.requires_grad:
            x.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    return x


def _run_one(layer: nn.Module, x: Tensor, key: int, low: bool) -> Any:
    _default_generator(x.device).manual_seed(key)
    with _lowered(x.device) if low else nullcontext():
        return layer(x)


def _lowered(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def _default_generator(device: torch.device) -> torch.Generator:
    """The one generator that layers on this device draw from. `torch.manual_seed` would seed the
    generators of all device kinds, at a hundred times the cost."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def named_parameters(layers: Iterable[tuple[int, nn.Module]]) -> list[tuple[str, nn.Parameter]]:
    """All parameters as (global name, parameter), in global order of the given layers."""
    return [(f"{i}.{name}", p) for i, layer in layers for name, p in layer.named_parameters()]


def tied_names(spec: ModelSpec) -> dict[str, str]:
    """Global name of each tied user's copy -> global name of its owner."""
    return {
        f"{t.user_layer}.{t.user_name}": f"{t.owner_layer}.{t.owner_name}"
        for t in sorted(spec.tied, key=lambda t: (t.user_layer, t.user_name))
    }


def _build_alone(spec: ModelSpec, index: int, seed: int) -> nn.Module:
    with keyed_draws(keyed_seed(seed, "init", index)):
        layer = spec.factories[index]()
    for name, parameter in layer.named_parameters():
        if is_lazy(parameter):
            raise InputError(
                f"layer {index} ({type(layer).__name__}) has a parameter {name!r} whose shape "
                "follows from the first input; give its shape, as nn.Linear for nn.LazyLinear"
            )
        # Sums over a parameter run in memory order, so the layout is the same everywhere.
        parameter.data = parameter.data.contiguous()
    return layer.train()


def _parameter(layer: nn.Module, tie: TiedParameter, name: str) -> nn.Parameter:
    found = dict(layer.named_parameters()).get(name)
    if found is None:
        raise InputError(
            f"the tie of {tie.user_layer}.{tie.user_name} to {tie.owner_layer}.{tie.owner_name} "
            f"names no parameter: {type(layer).__name__} has no {name!r}; "
            f"it has {', '.join(n for n, _ in layer.named_parameters()) or 'none at all'}"
        )
    return found


class _Given(torch.autograd.Function):
    """A number whose gradient is always the given gradient of the output."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return output.new_empty(())  # nobody reads it, so nothing is written

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None


def run_back(output: Tensor, gradient: Tensor | None) -> None:
    """Add to the gradients of all that `output` was made from; `gradient` None: `output` is the
    loss.

    `torch.autograd.backward` with a gradient would load torch's symbolic shapes to compare two
    sizes, which takes 0.4 s in every process that trains.
    """
    given: Any = _Given
    torch.autograd.backward(output if gradient is None else given.apply(output, gradient))
