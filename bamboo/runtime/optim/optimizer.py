"""The optimizer of a run: which parameters step together, at which rate and decay.

Rule: what a parameter becomes depends on itself, its gradient, its state and its global name alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from bamboo.config.tree import Segment, TrainConfig
from bamboo.models import Optimizer as Kernel
from bamboo.models import Workload
from bamboo.models.workload import Schedule
from bamboo.runtime.optim.kernels import FUSED, BuiltIn
from bamboo.runtime.optim.state import OptimizerState

GROUP_ELEMENTS = 1 << 18
"""Elements: a MiB of float32, and as much of each moment."""


class Optimizer:
    """The optimizer of a run; it holds the configuration and no state."""

    def __init__(
        self,
        train: TrainConfig,
        segments: Sequence[Segment] = (),
        *,
        own: Kernel | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        """`segments`: the finished segments of the run before the one that `train` describes.
        `own`, `schedule`: the user's own; None: those that `train` names."""
        self._train = train
        # All else that decides the numbers is the same in each segment.
        self._segments = [
            (
                segment.to_step,
                replace(
                    train,
                    steps=segment.steps,
                    learning_rate=segment.learning_rate,
                    warmup_steps=segment.warmup_steps,
                    final_learning_rate=segment.final_learning_rate,
                ),
            )
            for segment in segments
        ]
        self._kernel: Kernel = BuiltIn(train) if own is None else own
        self._fused = own is None and train.optimizer in FUSED
        self._schedule = schedule or _SCHEDULES[train.schedule]
        self._settings: dict[str, tuple[float, float | None]] = {}

    def state(self, shape: torch.Size) -> dict[str, torch.Size]:
        """The shapes of what it keeps of a parameter of this shape, by kind; all start as zeros."""
        kept = self._kernel.state(shape)
        return {kind: torch.Size(one) for kind, one in kept.items()}

    def new_state(self, params: Mapping[str, Tensor], *, on_host: bool = False) -> OptimizerState:
        """The state of these parameters before the first step, where they are or on the host."""
        tensors = {
            name: {
                kind: torch.zeros(shape, device="cpu" if on_host else p.device)
                for kind, shape in self.state(p.shape).items()
            }
            for name, p in params.items()
        }
        return OptimizerState(tensors=tensors, on_host=on_host)

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step by the schedule of its segment, which counts from the
        segment's first step."""
        begin = 0
        for end, own in self._segments:
            if step < end:
                return self._schedule(step - begin, own.steps - begin, own)
            begin = end
        return self._schedule(step - begin, self._train.steps - begin, self._train)

    @torch.no_grad()
    def step(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        state: OptimizerState,
        *,
        step: int,
        clip_factor: float,
    ) -> None:
        """Update `params` and `state` in place; `grads` are not changed. All three are of the same
        parameters, in the same order."""
        rate, kept = self.learning_rate(step), list(state.tensors.values())
        for (factor, decay), chosen in self._together(list(state.tensors), params).items():
            for part in self._parts(params, chosen):
                own = [grads[i] for i in part]
                if not self._fused:
                    # A received gradient lies anywhere in memory, one of autograd's may have other
                    # strides where its size is 1, and sums and products may follow that.
                    own = [grad.clone(memory_format=torch.contiguous_format) for grad in own]
                if clip_factor != 1.0:
                    own = list(torch._foreach_mul(own, clip_factor))
                self._kernel.step(
                    [params[i] for i in part],
                    own,
                    [kept[i] for i in part],
                    lr=rate if factor == 1.0 else rate * factor,
                    weight_decay=decay,
                    step=step,
                )

    def _together(
        self, names: Sequence[str], params: Sequence[Tensor]
    ) -> dict[tuple[float, float], list[int]]:
        """(Factor of the rate, weight decay) -> places of the parameters that have them."""
        found: dict[tuple[float, float], list[int]] = {}
        for i, name in enumerate(names):
            factor, decay = self._of(name)
            if decay is None:  # matrices alone
                decay = self._train.weight_decay if params[i].dim() >= 2 else 0.0
            found.setdefault((factor, decay), []).append(i)
        return found

    def _of(self, name: str) -> tuple[float, float | None]:
        """The factor of its rate and its weight decay, by global name; None: as all others."""
        if name not in self._settings:
            own = next((x for x in self._train.group if fnmatchcase(name, x.match)), None)
            decay = None if own is None or isinstance(own.weight_decay, str) else own.weight_decay
            self._settings[name] = (1.0 if own is None else own.learning_rate_factor, decay)
        return self._settings[name]

    def _parts(self, params: Sequence[Tensor], chosen: Sequence[int]) -> list[list[int]]:
        """The places in parts that end once they have GROUP_ELEMENTS elements: on a CPU so small
        that their clipped gradients are still in a core's cache when the kernel reads them. An
        optimizer that is not fused gets each parameter by itself."""
        most = math.inf if params[chosen[0]].is_cuda else GROUP_ELEMENTS
        parts: list[list[int]] = [[]]
        elements = 0
        for i in chosen:
            if parts[-1] and (elements >= most or not self._fused):
                parts.append([])
                elements = 0
            parts[-1].append(i)
            elements += params[i].numel()
        return parts


def optimizer_of(
    train: TrainConfig, workload: Workload, segments: Sequence[Segment] = ()
) -> Optimizer:
    """The optimizer of a run of this workload."""
    own, schedule = workload.optimizer, workload.schedule
    return Optimizer(train, segments, own=own, schedule=schedule)


def _warm(step: int, own: TrainConfig) -> float | None:
    """The learning rate of a linear warm-up; None after it."""
    warmup = own.warmup_steps
    return own.learning_rate * (step + 1) / warmup if step < warmup else None


def _falling(height: Callable[[float], float]) -> Schedule:
    """A warm-up, then `height` of the share of the rest that is done, from 1 to 0, between the
    learning rate and the final one."""

    def rate(step: int, steps: int, own: TrainConfig) -> float:
        if (warm := _warm(step, own)) is not None:
            return warm
        span = max(steps - 1 - own.warmup_steps, 1)
        done = min((step - own.warmup_steps) / span, 1.0)
        low = own.final_learning_rate
        return low + (own.learning_rate - low) * height(done)

    return rate


def _constant(step: int, steps: int, own: TrainConfig) -> float:
    warm = _warm(step, own)
    return own.learning_rate if warm is None else warm


_SCHEDULES: Mapping[str, Schedule] = {
    "cosine": _falling(lambda done: (1.0 + math.cos(math.pi * done)) / 2.0),
    "linear": _falling(lambda done: 1.0 - done),
    "constant": _constant,
}
