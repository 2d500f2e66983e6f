"""Counts the work of an operation on the device: flops of its products, bytes and kernels of all.

Rule: it counts the kernels that torch issues without a compiler, one by one, and ignores what a
kernel keeps in a cache. Views and memory that is only allocated cost nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from bamboo.planner.profiles.profiled import Work

ALLOCATING = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
NO_KERNEL = frozenset({"_unsafe_view", "_reshape_alias"})
GATHERING = frozenset({"index", "embedding", "index_select", "gather", "nll_loss_forward"})
"""Operators that read no more of their first tensor than they return."""
CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
"""The one attention kernel that torch's own table of flops leaves out."""


class WorkCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the work that is issued while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._product_flops = self._product_bytes = self._other_bytes = 0.0
        self._kernels = 0
        self._before = ""

    @property
    def work(self) -> Work:
        """All the work so far."""
        return Work(
            product_flops=self._product_flops,
            product_bytes=self._product_bytes,
            other_bytes=self._other_bytes,
            kernels=self._kernels,
        )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operator and count it."""
        del types
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._overloadpacket._qualified_op_name.rpartition("::")[2]
        # `run_back` starts a stage's backward with a scalar of its own, whatever layers it has.
        own_root = (self._before, name) == ("new_empty", "ones_like")
        self._before = name
        if not (name in ALLOCATING or name in NO_KERNEL or _is_view(func) or own_root):
            sizes = [_bytes(t) for t in _read_and_written(func, args, kwargs, out)]
            if name in GATHERING:
                sizes[0] = min(sizes[0], sizes[-1])
            moved = float(sum(sizes))
            flops = _flops(func, name, args, kwargs, out)
            self._kernels += 1
            if flops:
                self._product_flops += flops
                self._product_bytes += moved
            else:
                self._other_bytes += moved
        return out


def _is_view(func: Any) -> bool:
    returns = [result.alias_info for result in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returns)


def _read_and_written(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
) -> Iterator[Tensor]:
    """Every tensor that the operator takes or makes; one that it changes in place comes twice."""
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | dict(kwargs)
    for argument in func._schema.arguments:
        tensors = _tensors(named.get(argument.name))
        yield from tensors
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors
    if all(result.alias_info is None for result in func._schema.returns):
        yield from _tensors(out)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    # An expanded tensor has more elements than memory.
    own = tensor.numel() * tensor.element_size()
    return min(own, tensor.untyped_storage().nbytes())


def _flops(
    func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
) -> float:
    if name == CPU_ATTENTION:
        shapes = [t.shape for t in args[:3]]
        return float(sdpa_flop_count(*shapes))  # type: ignore[no-untyped-call]
    if name == f"{CPU_ATTENTION}_backward":
        shapes = [t.shape for t in args[:4]]
        return float(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]
    counted = flop_registry.get(func._overloadpacket)
    return float(counted(*args, **kwargs, out_val=out)) if counted is not None else 0.0


def device_kind(device: torch.device) -> str:
    """`cpu`, or the name of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
