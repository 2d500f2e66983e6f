"""Runs consecutive layers forward and backward, with the same bits wherever the model is cut.

Rule: a layer's randomness depends only on the seed, the step, the global microbatch index and the
layer's global index. A boundary between layers is a tuple of tensors, and at every boundary the
graph is the same, whether the model is cut there or not.
"""

from collections.abc import Container, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bamboo.topology.keys import keyed_seed

Tensors: TypeAlias = tuple[Tensor, ...]
"""What crosses a boundary between layers: one tensor or several, of any shapes."""
Gradients: TypeAlias = tuple[Tensor | None, ...]
"""One for each tensor of a boundary; None for one that nothing trains, or that nothing used."""


ALIGNMENT_BYTES = 64
"""Of all memory that torch allocates itself, on a GPU even more."""
OUT_OF_PLACE = "compute out of place, as with inplace=False"
ONE_OR_MORE = "return one tensor, or a flat tuple of two or more"


class BadBoundary(TypeError):
    """What a layer returns cannot be the input of another one, or it has written into its own."""

    def __init__(self, layer: int, problem: str, remedy: str) -> None:
        super().__init__(f"layer {layer} {problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


def unpacked(tensors: Tensors) -> Tensor | Tensors:
    """What a layer or a loss is given: the tensor where there is one, else the tuple."""
    return tensors[0] if len(tensors) == 1 else tensors


def as_leaves(tensors: Tensors) -> Tensors:
    """The same numbers at the beginning of a graph of their own, each with a gradient of its own
    where it has one in the graph that it comes from."""
    return tuple(t.detach().requires_grad_(t.requires_grad) for t in tensors)


def as_received(tensor: Tensor, *, aligned: bool = True) -> Tensor:
    """The same numbers as they lie in a tensor that another node received: contiguous, and, if
    `aligned`, with the strides of its shape where torch itself allocates memory. A product of the
    same numbers that lie in another way, as after `x[1:]`, may differ in its last bit."""
    lying = tensor.contiguous()
    if aligned and (lying.data_ptr() % ALIGNMENT_BYTES or _lies_oddly(lying)):
        return lying.clone(memory_format=torch.contiguous_format)
    return lying


def _lies_oddly(contiguous: Tensor) -> bool:
    """Whether its strides are not those of a new tensor: a dimension of size 1 may have any, as may
    all of a tensor without elements."""
    shape = contiguous.shape
    if 1 not in shape and 0 not in shape:
        return False
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return contiguous.stride() != tuple(reversed(strides))


def run_layers(
    layers: Sequence[tuple[int, nn.Module]],
    x: Tensors,
    again: Container[int] = (),
    /,
    *,
    seed: int,
    step: int,
    microbatch: int,
    precision: str = "fp32",
) -> Tensors:
    """Run consecutive layers, given as (global index, layer), on one microbatch.

    `precision` is `fp32`, or `bf16`: then each layer runs under autocast by itself, and what a
    layer returns is bfloat16 wherever a cut may be. (Micikevicius et al., 2018; autocast keeps no
    casted weights, which would depend on the layers that share the process.)

    Torch's default generator is seeded again for each layer from (seed, step, global microbatch
    index, global layer index), so dropout does not depend on which machine runs the layer. Raises
    BadBoundary when a layer returns anything but one tensor or a flat tuple of several, or writes
    into its input.

    The layers in `again` keep their input alone, and are computed again in the backward: under the
    same key, the same autocast and with a graph of their own in both, so all numbers are the same.
    """
    low = precision == "bf16"
    x = _bounded(x)
    for index, layer in layers:
        key = keyed_seed(seed, "layer", step, microbatch, index)
        versions = [t._version for t in x]
        if index in again:
            y = checkpoint(
                _run_one, layer, key, low, *x, use_reentrant=False, preserve_rng_state=False
            )
        else:
            y = _run_one(layer, key, low, *x)
        if versions != [t._version for t in x]:
            raise BadBoundary(index, "writes into its input", OUT_OF_PLACE)
        y = _returned(index, y)
        if low:
            y = tuple([t.to(torch.bfloat16) if t.is_floating_point() else t for t in y])
        x = _bounded(y)
    return x


def _run_one(layer: nn.Module, key: int, low: bool, *x: Tensor) -> Any:
    """Each tensor is an argument, so that autograd holds it, counts it and lets it go after the
    backward: a tuple would stay where it does not look."""
    _default_generator(x[0].device).manual_seed(key)
    with _lowered(x[0].device) if low else nullcontext():
        return layer(unpacked(x))


def _returned(index: int, y: object) -> Tensors:
    if isinstance(y, Tensor):
        return (y,)
    kind = type(y).__name__
    if not isinstance(y, tuple):
        raise BadBoundary(index, f"returns {kind}, neither a tensor nor a tuple", ONE_OR_MORE)
    for place, item in enumerate(y):
        if not isinstance(item, Tensor):
            what = f"returns a {kind} whose item {place} is {type(item).__name__}, no tensor"
            raise BadBoundary(index, what, ONE_OR_MORE)
    if len(y) < 2:
        raise BadBoundary(index, f"returns a {kind} of {len(y)}", "return the tensor by itself")
    return y


def _bounded(x: Tensors) -> Tensors:
    """The tensors of a boundary, as they are on both sides of a cut.

    They lie alike wherever a cut may be, in both directions (`as_received`). One node hands back
    all gradients at once, so those of a tensor that is here twice, or is handed through a layer,
    add in the same order as when they come in a message; and a layer cannot see whether a stage
    begins with it.
    """
    x = tuple([as_received(t) for t in x])
    trained = [t for t in x if t.requires_grad]
    if not trained:
        return x
    node: Any = _Boundary
    handed = iter(node.apply(*trained))
    return tuple(next(handed) if t.requires_grad else t for t in x)


class _Boundary(torch.autograd.Function):
    """The tensors themselves; back, each gradient in one layout, None for one that is unused."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensors:
        ctx.set_materialize_grads(False)
        return tuple(t.detach() for t in tensors)

    @staticmethod
    def backward(_: Any, *gradients: Tensor | None) -> Gradients:
        return tuple(None if g is None else as_received(g) for g in gradients)


def _lowered(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def _default_generator(device: torch.device) -> torch.Generator:
    """The one generator that layers on this device draw from. `torch.manual_seed` would seed the
    generators of all device kinds, at a hundred times the cost."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


class _Given(torch.autograd.Function):
    """A number whose gradients are always the given gradients of the outputs."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return outputs[0].new_empty(())  # nobody reads it, so nothing is written

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.gradients


def run_back(outputs: Tensors, gradients: Gradients | None) -> None:
    """Add to the gradients of all that `outputs` were made from, each of which has a gradient or
    None; `gradients` None: the one output is the loss.

    `torch.autograd.backward` with a gradient would load torch's symbolic shapes to compare two
    sizes, which takes 0.4 s in every process that trains.
    """
    if gradients is None:
        torch.autograd.backward(outputs)
        return
    pairs = [(y, g) for y, g in zip(outputs, gradients, strict=True) if g is not None]
    if pairs:
        given: Any = _Given
        torch.autograd.backward(given.apply([g for _, g in pairs], *(y for y, _ in pairs)))
