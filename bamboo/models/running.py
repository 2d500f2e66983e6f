"""Runs consecutive layers forward and backward, with the same bits wherever the model is cut.

Rule: a layer's randomness depends only on the seed, the step, the global microbatch index and the
layer's global index.
"""

from collections.abc import Container, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bamboo.topology.keys import keyed_seed


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
