"""What a job trains: a plain list of layers, each built alone from a key, and the loss.

Rule: nothing here knows stages or ranks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bamboo.data.dataset import Data, MadeOfText
from bamboo.models.running import Tensors, unpacked
from bamboo.user_code.manifest import CodeFile


class Optimizer(Protocol):
    """What steps the parameters, each by itself: an object of the user's own, or a built-in one.

    It holds its settings and nothing that changes: what it remembers of a parameter are tensors
    that it names here and that are given to it, so that any node can take the same step.
    """

    def state(self, shape: torch.Size) -> Mapping[str, Sequence[int]]:
        """Kind -> shape, of what is kept of a parameter of this shape. Each is float32, begins as
        zeros, and lies in files as `<kind>/<layer>.<name>`."""

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
        """Change each parameter and its state in place. What a parameter becomes depends on itself,
        its gradient and its state alone, whichever others are in the lists. `grads` are clipped
        copies, which may be written to. `step` counts from 0, for all of a run."""


Schedule = Callable[[int, int, Any], float]
"""(step, steps, train) -> the learning rate of that step of a segment with so many steps; `train`
is the segment's `TrainConfig`. Steps count from 0 in each segment."""
Loss = Callable[[Any, Any], Tensor]
"""(outputs of the last layer, targets of the data) -> float32 scalar: the SUM over all that the
data counts. Each is a tensor, or the tuple where there are several."""
Metrics = Callable[[Any, Any], Mapping[str, tuple[Any, Any]]]
"""The same arguments -> {name: (sum, count)}: each a number, or a tensor of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedParameter:
    """Parameter `user_name` of layer `user_layer` is the owner's parameter under another name.

    Each of the two layers keeps its own copy. Both step with the sum of both gradients, and that
    sum counts once, at the owner's place, in the clipping norm.
    """

    owner_layer: int
    owner_name: str
    user_layer: int
    user_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One factory per layer, in order; the output of a layer is the input of the next one.

    A user's may have layers themselves in their place, or an nn.Sequential of them: `build_model`
    makes factories of them. A factory draws initial values only from the generators that `draws`
    keys.
    """

    layers: Sequence[Callable[[], nn.Module]] | nn.Sequential
    loss: Loss
    data: Data | MadeOfText | None = None
    """None: the text of [data]."""
    eval_data: Data | None = None
    """What `[eval]` evaluates where it names no source."""
    metrics: Metrics | None = None
    """What is recorded beside a step's loss: the sums of all microbatches, divided by the
    counts."""
    tied: tuple[TiedParameter, ...] = ()
    optimizer: Optimizer | None = None
    """None: the one that the job names."""
    schedule: Schedule | None = None
    """None: the one that the job names."""
    frozen: tuple[str, ...] = ()
    """Patterns over the global names of parameters that keep their values."""
    plain: bool = False
    """Whether layers keep nothing that was computed from their parameters, and have no tensors but
    those, or a factory with `shell()`, which makes a layer without memory for them: then a layer
    whose parameters are known need not draw initial values."""
    vocabulary: int = 0
    """How many tokens the model knows, where that is known before it runs; 0: it is not."""
    files: tuple[CodeFile, ...] = ()
    """What a run takes along of it beside the user's code."""
    uncut: Callable[[Sequence[nn.Module], Tensors], Tensor] | None = None
    """(layers, inputs) -> what the last layer returns, by the forward of the whole model that they
    were cut out of, with their own parameters and without dropout. The preflight compares."""
    prefixes: tuple[str, ...] = ()
    """What stands before the names of each layer's tensors in the state of the whole model, such as
    `head.`; empty: its number and a dot, as in an nn.Sequential of a list of layers."""


def measured(workload: Workload, output: Tensors, targets: Tensors) -> dict[str, Tensor]:
    """The metrics of a microbatch: name -> (sum, count), float64, where the output lies."""
    if workload.metrics is None:
        return {}
    place = output[0].device
    with torch.no_grad():
        found = workload.metrics(unpacked(tuple(t.detach() for t in output)), unpacked(targets))
        pairs = {str(name): (total, count) for name, (total, count) in sorted(found.items())}
        return {
            name: torch.stack(
                [torch.as_tensor(x, dtype=torch.float64, device=place).reshape(()) for x in pair]
            )
            for name, pair in pairs.items()
        }


def mean_metrics(measured: Iterable[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Name -> the sum over a step by its count, from what its microbatches measured, in global
    order; a name that counts 0 is left out."""
    totals: dict[str, tuple[float, float]] = {}
    for of_microbatch in measured:
        for name, (total, count) in of_microbatch.items():
            before = totals.get(name, (0.0, 0.0))
            totals[name] = (before[0] + total, before[1] + count)
    return {name: total / count for name, (total, count) in totals.items() if count}


def whole_name(workload: Workload, index: int, name: str) -> str:
    """What the tensor `name` of layer `index` is called in the state of the whole model."""
    prefix = workload.prefixes[index] if workload.prefixes else f"{index}."
    return prefix + name


def tied_names(workload: Workload) -> dict[str, str]:
    """Global name of each tied user's copy -> global name of its owner."""
    return {
        f"{t.user_layer}.{t.user_name}": f"{t.owner_layer}.{t.owner_name}"
        for t in sorted(workload.tied, key=lambda t: (t.user_layer, t.user_name))
    }
