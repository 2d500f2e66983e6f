"""AdamW with one named kernel everywhere: fused, one tensor at a time, never a flattened buffer.

Rule: the update of a parameter depends on that parameter, its gradient and its moments alone, so it
does not depend on which stage holds it. In a flattened buffer it would, because a vector loop
treats the tail of a buffer differently, and where the tail lies depends on the cut. (Loshchilov and
Hutter, 2019.) Steps count from 0.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from bamboo.config.tree import Segment, TrainConfig
from bamboo.runtime.optim.state import OptimizerState

CLIP_FACTOR = 0.9
"""Stands for the factor of a clipped step where a step is only measured."""
GROUP_ELEMENTS = 1 << 18
"""Elements: a MiB of float32, and as much of each moment."""
KERNEL = "adamw-fused, squares by row"
"""The kernels' names in the numerics; other kernels give other bits."""
LEAST_SQUARE = 1e-30
"""The least average square: among smaller squares, those that underflow would count."""


class AdamW:
    """The optimizer of a run; it holds the configuration and no state."""

    def __init__(self, train: TrainConfig, segments: Sequence[Segment] = ()) -> None:
        """`segments`: the finished segments of the run before the one that `train` describes."""
        self._train = train
        self._segments = segments

    def state(self, shape: torch.Size) -> dict[str, torch.Size]:
        """The shapes of what it keeps of a parameter of this shape, by kind; all start as zeros."""
        return {"exp_avg": shape, "exp_avg_sq": shape}

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
        """The learning rate of a step: linear warm-up, then a cosine that ends at
        `final_learning_rate` at the last step of the step's segment. Both count from the segment's
        first step."""
        begin = 0
        for segment in self._segments:
            if step < segment.to_step:
                return _scheduled(segment, step - begin, steps=segment.steps - begin)
            begin = segment.to_step
        return _scheduled(self._train, step - begin, steps=self._train.steps - begin)

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
        parameters, in the same order.

        Only parameters with two or more dimensions have weight decay.
        """
        train, kept = self._train, list(state.tensors.values())
        on_gpu = bool(params) and params[0].is_cuda
        for decays, chosen in _groups(params, most=math.inf if on_gpu else GROUP_ELEMENTS):
            own = [grads[i] for i in chosen]
            adamw(
                [params[i] for i in chosen],
                own if clip_factor == 1.0 else list(torch._foreach_mul(own, clip_factor)),
                [kept[i]["exp_avg"] for i in chosen],
                [kept[i]["exp_avg_sq"] for i in chosen],
                [],
                # The kernel adds one to these before it uses them.
                list(torch.full((len(chosen),), float(step), device=params[0].device).unbind()),
                fused=True,
                amsgrad=False,
                maximize=False,
                beta1=train.beta1,
                beta2=train.beta2,
                lr=self.learning_rate(step),
                weight_decay=train.weight_decay if decays else 0.0,
                eps=train.epsilon,
            )


def _scheduled(own: TrainConfig | Segment, step: int, *, steps: int) -> float:
    """The learning rate of a step of a segment of `steps` steps; `step` counts from the segment's
    first."""
    if step < own.warmup_steps:
        return own.learning_rate * (step + 1) / own.warmup_steps
    span = max(steps - 1 - own.warmup_steps, 1)
    done = min((step - own.warmup_steps) / span, 1.0)
    height = (1.0 + math.cos(math.pi * done)) / 2.0
    low = own.final_learning_rate
    return low + (own.learning_rate - low) * height


def _groups(params: Sequence[Tensor], *, most: float) -> Iterator[tuple[bool, list[int]]]:
    """The parameters with weight decay and those without, in groups that end once they have `most`
    elements: on a CPU so small that their clipped gradients are still in a core's cache when the
    kernel reads them."""
    for decays in (True, False):
        group, elements = [], 0
        for i in (i for i, p in enumerate(params) if (p.dim() >= 2) is decays):
            group.append(i)
            elements += params[i].numel()
            if elements >= most:
                yield decays, group
                group, elements = [], 0
        if group:
            yield decays, group


def end_step(
    optimizer: AdamW,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    state: OptimizerState,
    *,
    clip_factor: float,
) -> None:
    """The work of an owner at the end of a step, for measurements: the squares for the norm, the
    clipping, and AdamW."""
    squares(grads)
    optimizer.step(params, grads, state, step=0, clip_factor=clip_factor)


def squares(grads: Iterable[Tensor]) -> list[float]:
    """The sum of squares of each gradient, added in the gradient's own type within a row and in
    float64 beyond it, so that a matrix is read once and not written again (benchmarks/NOTES.md).
    Its relative error is within 1e-7 for rows of thousands of elements, whatever the gradient's
    size."""
    own = [grad.detach() for grad in grads]
    if not own:
        return []
    # All numbers are read at once, because a GPU is idle while one is read.
    totals: list[float] = torch.stack(list(map(_sum_by_rows, own))).tolist()
    for place, (grad, total) in enumerate(zip(own, totals, strict=True)):
        if grad.dim() >= 2 and not grad.numel() * LEAST_SQUARE < total < math.inf:
            # A float32 cannot hold a square below 1e-38 or above 3e38.
            totals[place] = float(_wide_sum_of_squares(grad))
    return totals


def _sum_by_rows(grad: Tensor) -> Tensor:
    if grad.dim() < 2:
        return _wide_sum_of_squares(grad)
    return _wide_sum_of_squares(torch.linalg.vector_norm(grad.flatten(1), dim=1))


def _wide_sum_of_squares(tensor: Tensor) -> Tensor:
    wide = tensor.to(torch.float64, copy=True)
    return wide.mul_(wide).sum()


def gradient_norm(squares_in_global_order: Iterable[float]) -> float:
    """The global norm, added one by one in global parameter order; a tied gradient counts once."""
    return math.sqrt(_add_in_order(squares_in_global_order))


def mean_loss(loss_sums_in_global_order: Iterable[float], count: int) -> float:
    """The reported loss of a step: the microbatches' sums in global order, by what was counted."""
    return _add_in_order(loss_sums_in_global_order) / count


def clip_factor(squares_in_global_order: Iterable[float], clip_norm: float) -> float:
    """The factor for every gradient that makes the global norm at most `clip_norm`.

    It is 1.0 when the norm is small enough already, or when `clip_norm` is 0 (off). It is not
    finite when a gradient is not: the caller then stops the run before the step.
    """
    norm = gradient_norm(squares_in_global_order)
    if clip_norm == 0.0 or norm <= clip_norm:
        return 1.0
    return clip_norm / norm


def _add_in_order(values: Iterable[float]) -> float:
    # `sum` compensates rounding since Python 3.12, so its result would depend on the release.
    total = 0.0
    for value in values:
        total += value
    return total
