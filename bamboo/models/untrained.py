"""What layers have beside their trained parameters: frozen parameters, buffers, batch norms.

Batch norm: a microbatch is normalised by its own statistics, and what a step saw of all of them
moves the running statistics once. Of all that is not trained, nothing else changes.

Rule: a forward changes no buffer. It hands its statistics over with its microbatch, so a forward
that is computed again, or by two nodes, changes nothing. The statistics are the kernel's own: it
writes them into fresh buffers, with a momentum of 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bamboo.models.layers import named_parameters, saved_buffers

MEAN = "running_mean"
VARIANCE = "running_var"
STEPS = "num_batches_tracked"


class BatchNorms:
    """The batch norms of some layers that have running statistics and are in train mode. From here
    on a forward of these modules leaves their buffers as they are."""

    def __init__(self, layers: Iterable[tuple[int, nn.Module]]) -> None:
        self._modules = named_batch_norms(layers)
        for name, module in self._modules.items():
            module.forward = partial(_normalised, module, name)  # type: ignore[method-assign]
        self.momenta = {name: float(norm.momentum or 0.0) for name, norm in self._modules.items()}
        """By global name of the batch norm."""
        self.names = statistics_of(self.momenta)

    @property
    def shapes(self) -> list[torch.Size]:
        """The shapes of the statistics, in the order of `names`."""
        buffers = self.buffers
        return [buffers[name].shape for name in self.names]

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The running statistics and the counts of steps, by global name."""
        kinds = (MEAN, VARIANCE, STEPS)
        return {f"{n}.{k}": getattr(m, k) for n, m in self._modules.items() for k in kinds}

    def begin(self) -> None:
        """A microbatch is about to run forward."""
        for module in self._modules.values():
            _found_in(module).clear()

    def taken(self) -> list[Tensor]:
        """Mean and variance of each batch norm in the microbatch that has just run. Raises
        ValueError unless each ran once."""
        out: list[Tensor] = []
        for name, module in self._modules.items():
            found = _found_in(module)
            if len(found) != 2:
                raise ValueError(
                    f"the batch norm {name} ran {len(found) // 2} times in the forward of one "
                    "microbatch, and its running statistics need one; give each use one of its own"
                )
            out += found
            found.clear()
        return out


class Untrained:
    """These tensors of some layers, and the statistics of the microbatches in progress."""

    def __init__(self, layers: Sequence[tuple[int, nn.Module]]) -> None:
        self.norms = BatchNorms(layers)
        self._layers = tuple(layers)
        self._standing = self._tensors()
        self.buffers = {f"{i}.{name}": b for i, layer in layers for name, b in saved_buffers(layer)}
        """By global name, in global order."""
        running = self.norms.buffers
        frozen = [(n, p) for n, p in named_parameters(layers) if not p.requires_grad]
        found: dict[str, Tensor] = {f"param/{name}": p for name, p in frozen}
        found |= {f"buffer/{name}": b for name, b in self.buffers.items() if name not in running}
        self._constant = [(name, tensor, tensor._version) for name, tensor in found.items()]
        self.constant = frozenset(found)
        """What never changes, named as in the final files."""
        self.size_bytes = sum(x.nbytes for x in (*self.buffers.values(), *(p for _, p in frozen)))
        """Bytes of all of it."""
        self._sums: list[Tensor] = []

    def _tensors(self) -> dict[str, tuple[int, bool]]:
        """Which tensor is in each place of the layers, and whether it is trained."""
        found: dict[str, Tensor] = {f"param/{n}": p for n, p in named_parameters(self._layers)}
        for i, layer in self._layers:
            found |= {f"buffer/{i}.{name}": b for name, b in saved_buffers(layer)}
        return {name: (id(tensor), tensor.requires_grad) for name, tensor in found.items()}

    def add(self, statistics: Sequence[Tensor]) -> None:
        """Add what `BatchNorms.taken` gave of a microbatch; they come in order."""
        if self._sums:
            both = zip(self._sums, statistics, strict=True)
            self._sums = [total + own for total, own in both]
        else:
            self._sums = list(statistics)

    def take(self) -> list[Tensor]:
        """The sums since the last call. Raises ValueError when a tensor that never changes has, or
        another one is in the place of any: no other node would know."""
        now = self._tensors()
        for name in {**self._standing, **now}:
            if now.get(name) != self._standing.get(name):
                raise ValueError(
                    f"a layer put another tensor in the place of its {name} while it ran, or no "
                    "longer trains it as it did; leave parameters and buffers as they were made"
                )
        for name, tensor, version in self._constant:
            if tensor._version != version:
                raise ValueError(
                    f"a layer changed its {name} while it ran; frozen parameters and buffers must "
                    "stay as they are, but for the running statistics of torch's own batch norms"
                )
        sums, self._sums = self._sums, []
        return sums

    def step(self, sums: Sequence[Tensor], microbatches: int) -> None:
        """Move the running statistics by the sums over all microbatches of a step."""
        norms = self.norms
        step_statistics(norms.momenta, norms.buffers, sums, microbatches=microbatches)


def takes_statistics(module: nn.Module) -> bool:
    """Whether `BatchNorms` has changed its forward."""
    return getattr(module.__dict__.get("forward"), "func", None) is _normalised


def statistics_of(norms: Iterable[str]) -> list[str]:
    """Global names of the running statistics of these batch norms, in the order of a microbatch's
    statistics."""
    return [f"{name}.{kind}" for name in norms for kind in (MEAN, VARIANCE)]


def step_statistics(
    momenta: Mapping[str, float],
    buffers: Mapping[str, Tensor],
    sums: Sequence[Tensor],
    *,
    microbatches: int,
) -> None:
    """Move the running statistics in `buffers`, by global name, by one step of momentum to the mean
    over all microbatches of the step, whose sums these are; and count the step. `momenta`: see
    `BatchNorms`."""
    for name, total in zip(statistics_of(momenta), sums, strict=True):
        momentum = momenta[name.rpartition(".")[0]]
        buffers[name].mul_(1.0 - momentum).add_(total / microbatches, alpha=momentum)
    for name in momenta:
        buffers[f"{name}.{STEPS}"].add_(1)


def named_batch_norms(layers: Iterable[tuple[int, nn.Module]]) -> dict[str, _BatchNorm]:
    """The batch norms of these layers that have running statistics to move, by global name."""
    return {
        f"{index}.{path}" if path else str(index): module
        for index, layer in layers
        for path, module in layer.named_modules()
        if is_batch_norm(module)
    }


def is_batch_norm(module: nn.Module) -> TypeGuard[_BatchNorm]:
    """Whether its running statistics would change in a forward, in the way of torch's own classes.
    One derived from them may reshape what it is given."""
    return (
        isinstance(module, _BatchNorm)
        and module.training
        and module.track_running_stats
        and module.running_mean is not None
    )


def _normalised(norm: _BatchNorm, name: str, x: Tensor) -> Tensor:
    if not norm.training:
        raise ValueError(f"the batch norm {name} left its train mode; set its mode in train()")
    kept = {kind: getattr(norm, kind) for kind in (MEAN, VARIANCE, STEPS, "momentum")}
    mean, variance = torch.zeros_like(kept[MEAN]), torch.ones_like(kept[VARIANCE])
    fresh = {MEAN: mean, VARIANCE: variance, STEPS: kept[STEPS].clone(), "momentum": 1.0}
    try:
        for kind, value in fresh.items():
            setattr(norm, kind, value)
        y = type(norm).forward(norm, x)
    finally:
        for kind, value in kept.items():
            setattr(norm, kind, value)
    _found_in(norm).extend((mean, variance))
    return y


def _found_in(module: nn.Module) -> list[Tensor]:
    """Where a forward of this module puts its statistics."""
    found: list[Tensor] = module.__dict__.setdefault("_bamboo_statistics", [])
    return found
