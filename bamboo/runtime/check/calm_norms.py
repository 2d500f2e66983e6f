"""What the calm reference has beside its parameters: the model's metrics, and buffers with torch's
own batch norms in their own forward.

Rule: nothing of the runtime's batch norms is shared but which of them there are.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from bamboo.models import Tensors, Workload, mean_metrics, measured, saved_buffers
from bamboo.models.untrained import named_batch_norms


class CalmNorms:
    """The buffers of some layers, in `buffers` by global name. The batch norms have a momentum of
    1: after a microbatch their own buffers are its statistics."""

    def __init__(self, layers: list[tuple[int, nn.Module]]) -> None:
        self.buffers = {f"{i}.{name}": b for i, layer in layers for name, b in saved_buffers(layer)}
        self._norms = [(n, norm, norm.momentum) for n, norm in named_batch_norms(layers).items()]
        self._sums: list[Tensor] = []
        for name, norm, _ in self._norms:
            for kind, buffer in norm.named_buffers():
                self.buffers[f"{name}.{kind}"] = buffer.clone()
            norm.momentum = 1.0

    def begin(self) -> None:
        """A microbatch is about to run forward."""
        for _, norm, _ in self._norms:
            norm.reset_running_stats()

    def end(self) -> None:
        """Add up mean and variance of each batch norm in the microbatch that has just run."""
        both = ((norm.running_mean, norm.running_var) for _, norm, _ in self._norms)
        found = [x.clone() for pair in both for x in pair if x is not None]
        sums = zip(self._sums, found, strict=bool(self._sums))
        self._sums = [total + own for total, own in sums] or found

    @contextmanager
    def running(self) -> Iterator[None]:
        """The batch norms have their running statistics in their own buffers."""
        for name, norm, _ in self._norms:
            for kind, buffer in norm.named_buffers():
                buffer.copy_(self.buffers[f"{name}.{kind}"])
        yield
        self.begin()

    def taken(self) -> list[Tensor]:
        """The sums over the microbatches since the last call."""
        sums, self._sums = self._sums, []
        return sums

    def step(self, sums: list[Tensor], microbatches: int) -> None:
        """Move the running statistics by these sums over all microbatches of a step."""
        for number, (name, _, momentum) in enumerate(self._norms):
            assert momentum is not None, "refused by the preflight"
            for kind, total in zip(("mean", "var"), sums[2 * number :][:2], strict=True):
                running = self.buffers[f"{name}.running_{kind}"]
                running.mul_(1.0 - momentum).add_(total / microbatches, alpha=momentum)
            self.buffers[f"{name}.num_batches_tracked"].add_(1)


class CalmMetrics:
    """What a model measures in the microbatches of one step, which come in global order."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._found: list[dict[str, list[float]]] = []

    def add(self, output: Tensors, targets: Tensors) -> None:
        """A microbatch has run."""
        found = measured(self._workload, output, targets)
        self._found.append({name: pair.tolist() for name, pair in found.items()})

    def take(self) -> dict[str, float]:
        """The metrics of the microbatches since the last call."""
        found, self._found = self._found, []
        return mean_metrics(found)
