"""The built-in optimizers: what each does to parameters of one learning rate and weight decay.

Rule: the update of a parameter depends on that parameter, its gradient and its state alone, so it
does not depend on which stage holds it. In a flattened buffer it would, because a vector loop
treats the tail of a buffer differently, and where the tail lies depends on the cut. So these are
torch's own kernels, tensor by tensor: the fused ones of AdamW and Adam, the single-tensor ones of
all others. Steps count from 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim._adafactor import adafactor
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from bamboo.config.tree import TrainConfig
from bamboo.planner.layers.kept import OPTIMIZERS

SQUARES = "squares by row"
"""How the norm is added, which all optimizers share."""
FUSED = ("adamw", "adam")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    train: TrainConfig
    params: list[Tensor]
    grads: list[Tensor]
    states: Sequence[Mapping[str, Tensor]]
    step: int
    at: Mapping[str, Any]
    """`lr` and `weight_decay`."""

    def kept(self, kind: str) -> list[Any]:
        """This kind of each state, None where a state has none."""
        return [state.get(kind) for state in self.states]

    def steps(self, device: torch.device | str = "cpu") -> list[Tensor]:
        """The step as each kernel wants it, which adds one before it uses it: on the host, unless
        the kernel reads it on the device."""
        whole = torch.full((len(self.params),), float(self.step), device=device)
        return list(whole.unbind())


def _adamw(x: _Call, kernel: Callable[..., None] = adamw) -> None:
    """Loshchilov and Hutter, 2019."""
    betas = {"beta1": x.train.beta1, "beta2": x.train.beta2, "eps": x.train.epsilon}
    flags: dict[str, Any] = {"fused": True, "amsgrad": False, "maximize": False}
    steps = x.steps(x.params[0].device)
    both = x.kept("exp_avg"), x.kept("exp_avg_sq")
    kernel(x.params, x.grads, *both, [], steps, **flags, **betas, **x.at)


def _adam(x: _Call) -> None:
    _adamw(x, adam)


def _sgd(x: _Call) -> None:
    own = {"momentum": x.train.momentum, "nesterov": x.train.nesterov, "dampening": 0.0}
    flags: dict[str, Any] = {"foreach": False, "fused": False, "maximize": False}
    sgd(x.params, x.grads, x.kept("momentum_buffer"), **flags, **own, **x.at)  # type: ignore[arg-type]


def _adagrad(x: _Call) -> None:
    own = {"lr_decay": 0.0, "eps": x.train.epsilon}
    flags: dict[str, Any] = {"foreach": False, "fused": False, "maximize": False}
    adagrad(x.params, x.grads, x.kept("sum"), x.steps(), **flags, **own, **x.at)  # type: ignore[arg-type]


def _rmsprop(x: _Call) -> None:
    own = {"alpha": x.train.beta2, "eps": x.train.epsilon, "momentum": x.train.momentum}
    squares, buffers = x.kept("square_avg"), x.kept("momentum_buffer")
    flags: dict[str, Any] = {"foreach": False, "centered": False}
    rmsprop(x.params, x.grads, squares, [], buffers, x.steps(), **flags, **own, **x.at)  # type: ignore[arg-type]


def _adafactor(x: _Call) -> None:
    """Shazeer and Stern, 2018, as `torch.optim.Adafactor` does it by default: an update is in
    proportion to the root mean square of the parameter itself."""
    own: dict[str, Any] = {"d": 1.0, "beta2_decay": -0.8, "eps1": None, "eps2": 1e-3}
    flags: dict[str, Any] = {"foreach": False, "maximize": False}
    kept: list[Any] = [x.kept(kind) for kind in ("row_var", "col_var", "variance")]
    kernel: Callable[..., None] = adafactor
    kernel(x.params, x.grads, *kept, x.steps(), **flags, **own, **x.at)


_KERNELS: Mapping[str, Callable[[_Call], None]] = {
    "adamw": _adamw,
    "adam": _adam,
    "sgd": _sgd,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "adafactor": _adafactor,
}


class BuiltIn:
    """A built-in optimizer, by its name; see `bamboo.models.Optimizer`."""

    def __init__(self, train: TrainConfig) -> None:
        self._train = train

    def state(self, shape: torch.Size) -> dict[str, torch.Size]:
        """Kind -> shape, of what is kept of a parameter of this shape."""
        kept = OPTIMIZERS[self._train.optimizer](tuple(shape), self._train.momentum > 0)
        return {kind: torch.Size(one) for kind, one in kept.items()}

    def step(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[Mapping[str, Tensor]],
        *,
        lr: float,
        weight_decay: float,
        step: int,
    ) -> None:
        """Change each parameter and its state in place; see `bamboo.models.Optimizer`."""
        # torch's Adafactor divides by the number of elements.
        some = [place for place, parameter in enumerate(params) if parameter.numel()]
        if not some:
            return
        call = _Call(
            train=self._train,
            params=[params[place] for place in some],
            grads=[grads[place] for place in some],
            states=[states[place] for place in some],
            step=step,
            at={"lr": lr, "weight_decay": weight_decay},
        )
        _KERNELS[self._train.optimizer](call)


def kernel_name(optimizer: str) -> str:
    """The kernels' names in the numerics, on a CPU as on a GPU; other kernels give other bits."""
    if optimizer not in OPTIMIZERS:
        return f"own, {SQUARES}"
    return f"{optimizer}-{'fused' if optimizer in FUSED else 'single'}, {SQUARES}"
