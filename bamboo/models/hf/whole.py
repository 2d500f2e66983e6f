"""A Hugging Face model without memory, of which layers are cut, and how a layer gets its values.

Rule: a layer's values are the family's own initial ones, drawn under the layer's key, or those of
its tensors in the folder. A tensor that gets none is refused by its name.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from bamboo.errors import InputError
from bamboo.models.hf.parts import Part, Piece, base_name, cut_out
from bamboo.models.hf.weights import Pretrained

if TYPE_CHECKING:
    from bamboo.models.hf.lora import Adapters

Draw = Callable[[Any, nn.Module], None]
"""(the whole model, a layer's module) -> draws initial values that the family's own rule gives at
another place."""


def without_memory(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """The model that `make` makes, with shapes and no values."""
    with torch.device("meta"), no_init_weights():
        return make()


class Layer:
    """Makes one layer of a model: whole, or without memory for values that are known."""

    def __init__(
        self,
        whole: PreTrainedModel,
        part: Part,
        *,
        pretrained: Pretrained | None,
        adapters: "Adapters | None",
        draw: Draw | None = None,
        same: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`same`: name -> the other name of one parameter that the layer has twice."""
        self._same = same
        self._whole = whole
        self._part = part
        self._pretrained = pretrained
        self._adapters = adapters
        self._draw = draw

    def __call__(self) -> nn.Module:
        """The layer with its initial values. Raises InputError for one that nothing gives."""
        piece = self._cut()
        piece.to_empty(device="cpu")
        self._join(piece)
        with torch.no_grad():
            for _, tensor in _tensors(piece):
                _blank(tensor)
            _draw_buffers(piece)
            if self._pretrained is None:
                _draw_values(self._whole, piece)
                if self._draw is not None:
                    self._draw(self._whole, piece)
            else:
                for name, tensor in (*piece.named_parameters(), *_saved(piece)):
                    tensor.copy_(self._found(name, tensor, self._pretrained.tensor(name)))
        blank = [name for name, tensor in _tensors(piece) if _is_blank(tensor)]
        if blank:
            raise InputError(
                f"{type(self._whole).__name__} gives {blank[0]} no initial value; begin with a "
                "folder that has weights, or take another family"
            )
        return self._adapted(piece)

    def shell(self) -> nn.Module:
        """The layer without memory for its parameters; buffers have their values."""
        piece = self._cut()
        self._join(piece)
        with torch.no_grad():
            _draw_buffers(piece)
        with torch.device("meta"), no_init_weights():
            return self._adapted(piece)

    def shapes(self) -> dict[str, torch.Size]:
        """Of what a folder with weights has of this layer, by name."""
        piece = self._cut()
        self._join(piece)
        return {name: x.shape for name, x in (*piece.named_parameters(), *_saved(piece))}

    def _found(self, name: str, wanted: Tensor, found: Tensor) -> Tensor:
        """The values of a file, where they stand for numbers of this kind."""
        if found.is_floating_point() != wanted.is_floating_point():
            raise InputError(
                f"the weights have {name} as {found.dtype}, and {type(self._whole).__name__} has "
                f"it as {wanted.dtype}; take weights that are not quantized"
            )
        return found

    def _cut(self) -> Piece:
        config = self._whole.config
        return cut_out(self._whole, self._part, {id(config): config})

    def _join(self, piece: Piece) -> None:
        for name, other in self._same.items():
            _put(piece, name, piece.get_parameter(other))

    def _adapted(self, piece: Piece) -> nn.Module:
        if self._adapters is not None:
            self._adapters.put_into(piece)
        return piece


def joined(whole: PreTrainedModel, layers: Sequence[nn.Module], adapters: "Adapters | None") -> Any:
    """The whole model with the tensors of its layers themselves; without `adapters` none of
    theirs."""
    model: Any = copy.deepcopy(whole)
    with torch.no_grad():
        _draw_buffers(model)
    if adapters is not None:
        with torch.device("meta"), no_init_weights():
            adapters.put_into(model)
    for layer in layers:
        for name, parameter in layer.named_parameters():
            if there := base_name(name) if adapters is None else name:
                _put(model, there, parameter)
        for name, buffer in _saved(layer):
            _put(model, name, buffer)
    model.tie_weights()
    return model


def _put(model: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, short = name.rpartition(".")
    setattr(model.get_submodule(owner), short, tensor)


def _draw_values(whole: PreTrainedModel, piece: nn.Module) -> None:
    """By the family's own rule, which is a method of the whole model and looks at one module after
    the other, the inner ones first."""
    for child in piece.children():
        _draw_values(child if isinstance(child, PreTrainedModel) else whole, child)
    if not isinstance(piece, Piece):
        whole._init_weights(piece)


def _draw_buffers(model: nn.Module) -> None:
    """Values of buffers that no file has, such as the frequencies of rotary embeddings. The rule
    that gives them looks at one module at a time, so it is asked for those with buffers alone."""
    for owner, module in _with_owners(model):
        if not module._buffers:
            continue
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = _blank(torch.empty_like(buffer, device="cpu"))
        with _parameters_apart(module):
            owner._init_weights(module)


def _with_owners(model: nn.Module) -> Iterator[tuple[Any, nn.Module]]:
    """Each module, and the model whose rule gives its values."""
    first: Any = model.whole if isinstance(model, Piece) else model

    def below(owner: Any, module: nn.Module) -> Iterator[tuple[Any, nn.Module]]:
        for child in module.children():
            yield from below(child if isinstance(child, PreTrainedModel) else owner, child)
            yield (child if isinstance(child, PreTrainedModel) else owner), child

    yield from below(first, model)


@contextlib.contextmanager
def _parameters_apart(module: nn.Module) -> Iterator[None]:
    """Without its parameters, for which the rule would draw."""
    parameters = dict(module._parameters)
    for name in parameters:
        module._parameters[name] = None
    try:
        yield
    finally:
        module._parameters.update(parameters)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _saved(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The buffers that files have."""
    state = module.state_dict(keep_vars=True)
    return [(name, buffer) for name, buffer in module.named_buffers() if name in state]


def _blank(tensor: Tensor) -> Tensor:
    """Filled with what no initial value is."""
    if tensor.is_floating_point():
        return tensor.fill_(math.nan)
    return tensor.fill_(torch.iinfo(tensor.dtype).min) if tensor.dtype != torch.bool else tensor


def _is_blank(tensor: Tensor) -> bool:
    if tensor.is_floating_point():
        return bool(tensor.isnan().any())
    return tensor.dtype != torch.bool and bool((tensor == torch.iinfo(tensor.dtype).min).any())
