"""The calm reference: the same semantics in one process, in one plain loop, on no node to lose.

Rule: it shares only layers, data, keyed randomness, reduction tree and optimizer with the runtime,
never schedule, executor or transport, so that agreement between the two means something.
"""

from torch import Tensor, nn, zeros_like

from bamboo.config.resolve import batch_shape
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset
from bamboo.models import Workload, build_layer, named_parameters, run_layers, tied_names, unpacked
from bamboo.runtime.check.calm_norms import CalmMetrics, CalmNorms
from bamboo.runtime.device.staging import data_at, place_of
from bamboo.runtime.optim.optimizer import optimizer_of
from bamboo.runtime.optim.state import named_state
from bamboo.runtime.step.norm import clip_factor, mean_loss, squares
from bamboo.topology.reduction import TreeSum


class CalmRun:
    """Trains a resolved job step by step; `numerics.prepare` must have been called."""

    def __init__(self, job: JobConfig, workload: Workload, data: Dataset) -> None:
        self._job = job
        self._workload = workload
        place = place_of(job.cluster)
        self._data = data_at(data, place)
        self._shape = batch_shape(job)
        self.layers: list[tuple[int, nn.Module]] = [
            (i, build_layer(workload, i, job.train.seed).to(place))
            for i in range(len(workload.layers))
        ]
        self._owner_of = tied_names(workload)
        named = [(name, p) for name, p in named_parameters(self.layers) if p.requires_grad]
        self._names = [name for name, _ in named]
        self._params: list[Tensor] = [parameter for _, parameter in named]
        self.norms = CalmNorms(self.layers)
        self._optimizer = optimizer_of(job.train, workload, job.segments)
        self._kept = self._optimizer.new_state(dict(named))
        self.metrics = CalmMetrics(workload)
        self.steps_done = 0

    def step(self) -> float:
        """One optimizer step; returns the loss for each unit that the data counts."""
        tree: TreeSum[list[Tensor]] = TreeSum(self._shape.virtual_nodes, _add)
        losses: list[float] = []
        for virtual_node in range(self._shape.virtual_nodes):
            for parameter in self._params:
                parameter.grad = None
            for microbatch in self._shape.microbatches_of(range(virtual_node, virtual_node + 1)):
                losses.append(self._run(microbatch))
            grads = [zeros_like(p) if p.grad is None else p.grad for p in self._params]
            tree.push(virtual_node, virtual_node + 1, grads + self.norms.taken())
        assert tree.root is not None
        self.norms.step(tree.root[len(self._params) :], self._shape.total)
        grads = self._add_tied(tree.root[: len(self._params)])
        once = [g for n, g in zip(self._names, grads, strict=True) if n not in self._owner_of]
        factor = clip_factor(squares(once), self._job.train.clip_norm)
        self._optimizer.step(
            self._params, grads, self._kept, step=self.steps_done, clip_factor=factor
        )
        self.steps_done += 1
        return mean_loss(losses, self._data.count(self.steps_done - 1))

    def tensors(self) -> dict[str, Tensor]:
        """All of its state, named as in the final files."""
        params = {name: p.detach() for name, p in named_parameters(self.layers)}
        return named_state(params, self._kept.tensors, self.norms.buffers)

    def load(self, tensors: dict[str, Tensor], steps_done: int) -> None:
        """Go on from these, named as in `tensors`, as if `steps_done` steps had led to them."""
        mine = self.tensors()
        self.steps_done = steps_done
        for name, tensor in tensors.items():
            mine[name].copy_(tensor)

    def _run(self, microbatch: int) -> float:
        self.norms.begin()
        inputs, targets = self._data.microbatch(self.steps_done, microbatch)
        train = self._job.train
        at = {"seed": train.seed, "step": self.steps_done, "microbatch": microbatch}
        output = run_layers(self.layers, inputs, precision=train.precision, **at)
        loss = self._workload.loss(unpacked(output), unpacked(targets))
        self.metrics.add(output, targets)
        (loss / self._data.count(self.steps_done)).backward()  # type: ignore[no-untyped-call]
        self.norms.end()
        return loss.item()

    def _add_tied(self, grads: list[Tensor]) -> list[Tensor]:
        """Add the uses of a tied parameter in layer order, after each was reduced alone."""
        sums: dict[str, Tensor] = {}
        for name, grad in zip(self._names, grads, strict=True):
            owner = self._owner_of.get(name, name)
            sums[owner] = sums[owner] + grad if owner in sums else grad
        return [sums[self._owner_of.get(name, name)] for name in self._names]


def _add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(left, right, strict=True)]
