"""Makes single layers of a workload, with their keyed initial values or for values that are known.

Rule: a layer's initial values depend only on the seed and the layer's global index. A parameter's
global name is `<layer>.<name>`; global order is (layer, registration order).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from bamboo.errors import InputError
from bamboo.models.draws import keyed_draws
from bamboo.models.running import as_received
from bamboo.models.workload import TiedParameter, Workload
from bamboo.topology.keys import keyed_seed


def build_layer(workload: Workload, index: int, seed: int) -> nn.Module:
    """Layer `index` with its keyed initial values, the same on every machine that builds it.

    A tied user's copy gets the owner's initial value. All generators keep their state. Raises
    InputError when a tied parameter does not exist or has another shape than its owner.
    """
    layer = _build_alone(workload, index, seed)
    for tie in workload.tied:
        if tie.user_layer == index:
            owner = _parameter(_build_alone(workload, tie.owner_layer, seed), tie, tie.owner_name)
            user = _parameter(layer, tie, tie.user_name)
            if owner.shape != user.shape:
                raise InputError(
                    f"tied parameters {tie.owner_layer}.{tie.owner_name} {tuple(owner.shape)} and "
                    f"{tie.user_layer}.{tie.user_name} {tuple(user.shape)} differ in shape; "
                    "tie only parameters of one shape"
                )
            if (owner.requires_grad, owner.dtype) != (user.requires_grad, user.dtype):
                raise InputError(
                    f"tied parameters {tie.owner_layer}.{tie.owner_name} and "
                    f"{tie.user_layer}.{tie.user_name} must be trained or frozen together, and of "
                    f"one type; here they are {_said(owner)} and {_said(user)}"
                )
            user.data.copy_(owner.data)
    return layer


def build_shell(workload: Workload, index: int, seed: int) -> nn.Module:
    """Layer `index` for parameters that are known, which `put_parameters` sets. The layer of a
    plain model has no memory yet, unless it has buffers, which it may have to make; that of any
    other model has its initial values."""
    shell_of: Callable[[], nn.Module] | None = getattr(workload.layers[index], "shell", None)
    if workload.plain and shell_of is not None:
        return _frozen(workload, index, shell_of().train())
    if workload.plain:
        with torch.device("meta"), _Undrawn():
            shell = _frozen(workload, index, workload.layers[index]().train())
        if next(shell.buffers(), None) is None:
            return shell
    return build_layer(workload, index, seed)


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
    """Make these the parameters of a layer, and its buffers where `values` has them, without a
    copy; it has all parameters by name. Raises ValueError when one has another shape."""
    for name, buffer in saved_buffers(layer):
        if name in values:
            _check_shape(name, buffer, values[name])
            buffer.data = values[name]
    places: dict[int, list[str]] = {}
    for name, parameter in layer.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)
    for name, parameter in list(layer.named_parameters()):
        value = values[name]
        _check_shape(name, parameter, value)
        if not parameter.is_meta:
            parameter.data = value
            continue
        new = nn.Parameter(value, requires_grad=parameter.requires_grad)
        for place in places[id(parameter)]:  # one that the layer has under two names stays one
            owner, _, short = place.rpartition(".")
            setattr(layer.get_submodule(owner), short, new)


def _check_shape(name: str, mine: Tensor, value: Tensor) -> None:
    if value.shape != mine.shape:
        raise ValueError(f"{name} has shape {tuple(mine.shape)}, not {tuple(value.shape)}")


def named_parameters(layers: Iterable[tuple[int, nn.Module]]) -> list[tuple[str, nn.Parameter]]:
    """All parameters as (global name, parameter), in global order of the given layers."""
    return [(f"{i}.{name}", p) for i, layer in layers for name, p in layer.named_parameters()]


def saved_buffers(layer: nn.Module) -> list[tuple[str, Tensor]]:
    """The buffers that belong to a layer's state, by name; a layer makes the others itself."""
    found = []
    for name, buffer in layer.named_buffers():
        owner, _, short = name.rpartition(".")
        if short not in layer.get_submodule(owner)._non_persistent_buffers_set:
            found.append((name, buffer))
    return found


def _said(parameter: Tensor) -> str:
    return f"{'trained' if parameter.requires_grad else 'frozen'} in {parameter.dtype}"


def _build_alone(workload: Workload, index: int, seed: int) -> nn.Module:
    with keyed_draws(keyed_seed(seed, "init", index)):
        layer = workload.layers[index]()
    for name, tensor in chain(layer.named_parameters(), layer.named_buffers()):
        if is_lazy(tensor):
            raise InputError(
                f"layer {index} ({type(layer).__name__}) has a tensor {name!r} whose shape "
                "follows from the first input; give its shape, as nn.Linear for nn.LazyLinear"
            )
    held = Counter(map(_memory_of, layer.parameters()))
    for tensor in chain(layer.parameters(), layer.buffers()):
        # Products and sums follow how a tensor lies, so it lies as one that was received does. But
        # what lies in the memory of another parameter stays there, and the preflight refuses it.
        tensor.data = as_received(tensor.data, aligned=held[_memory_of(tensor)] < 2)
    return _frozen(workload, index, layer.train())


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _frozen(workload: Workload, index: int, layer: nn.Module) -> nn.Module:
    """The same; the parameters that the workload freezes require no gradient."""
    for name, parameter in layer.named_parameters():
        if any(fnmatchcase(f"{index}.{name}", pattern) for pattern in workload.frozen):
            parameter.requires_grad_(False)
    return layer


def _parameter(layer: nn.Module, tie: TiedParameter, name: str) -> nn.Parameter:
    found = dict(layer.named_parameters()).get(name)
    if found is None:
        raise InputError(
            f"the tie of {tie.user_layer}.{tie.user_name} to {tie.owner_layer}.{tie.owner_name} "
            f"names no parameter: {type(layer).__name__} has no {name!r}; "
            f"it has {', '.join(n for n, _ in layer.named_parameters()) or 'none at all'}"
        )
    return found
