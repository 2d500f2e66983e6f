"""One layer of a Hugging Face model: some of its modules under their own names, and what they
compute of what the layer before hands over.

Rule: the modules are transformers' own, taken out of the whole model; nothing of their arithmetic
is written again here. A parameter is called what it is called in the whole model, and so in its
files.
"""

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

Values = Any
"""A tensor, or a flat tuple of several: what one layer hands to the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one layer consists of."""

    holds: tuple[str, ...]
    """Paths of the modules whose tensors are its own, such as `model.layers.3`."""
    run: Callable[["Piece", Values], Values]
    """Its forward."""
    skipped: tuple[str, ...] = ()
    """Paths of modules that stand in their place and hand their first argument through."""
    beside: tuple[str, ...] = ()
    """Paths of modules without parameters that it needs as well."""


class Piece(nn.Module):
    """A layer. `whole` is a copy of the whole model without what is not this layer's."""

    def __init__(self, whole: nn.Module, run: Callable[["Piece", Values], Values]) -> None:
        super().__init__()
        # The same table, so that what is put in the place of a module is so for both.
        self.__dict__["_modules"] = whole._modules
        self._whole = (whole,)  # in a tuple, for it is none of the modules
        self._run = run

    @property
    def whole(self) -> Any:
        """The model that the modules are of, in which only this layer's are left."""
        return self._whole[0]

    def at(self, path: str) -> Any:
        """The module at this path."""
        return self.get_submodule(path)

    def forward(self, x: Values) -> Values:
        return self._run(self, x)


class HandsThrough(nn.Module):
    """Stands where another layer's module was."""

    def forward(self, *x: Tensor, **named: Tensor) -> Tensor:
        return x[0] if x else next(iter(named.values()))


def base_name(name: str) -> str:
    """What a parameter is called in a model without adapters; "" for one of an adapter."""
    return "" if "lora_" in name else name.replace(".base_layer.", ".")


def cut_out(whole: nn.Module, part: Part, shared: Mapping[int, Any]) -> Piece:
    """The layer of this part: copies of its modules, with parameters of their own. `shared`: what
    is not copied, by id, such as the configuration."""
    memo = dict(shared)
    kept = _cut(whole, "", (*part.holds, *part.beside), part.skipped, memo)
    return Piece(kept, part.run)


def _cut(
    module: nn.Module,
    path: str,
    kept: Collection[str],
    skipped: Collection[str],
    memo: dict[int, Any],
) -> nn.Module:
    if path in kept:
        copied: nn.Module = copy.deepcopy(module, memo)
        return copied
    bare = module.__class__.__new__(module.__class__)
    bare.__dict__ = {**module.__dict__, "_modules": {}, "_parameters": {}, "_buffers": {}}
    for name, child in module._modules.items():
        below = f"{path}.{name}" if path else name
        if child is None:
            bare._modules[name] = None
        elif below in skipped:
            bare._modules[name] = HandsThrough()
        elif any(one == below or one.startswith(f"{below}.") for one in (*kept, *skipped)):
            bare._modules[name] = _cut(child, below, kept, skipped, memo)
    return bare
