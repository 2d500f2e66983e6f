"""One stage of the model on this node: its layers, and forward and backward of one microbatch.

Rule: a stage knows nothing of nodes, messages or redundancy. The owner and the shadow of a stage
run this same code on the same inputs, which is why their bits are the same. Shapes: inputs and
outputs are whatever the layers say; stage 0 takes the inputs of the data.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from bamboo.models import (
    Gradients,
    Tensors,
    Untrained,
    Workload,
    as_leaves,
    build_layer,
    build_shell,
    evaluate,
    measured,
    named_parameters,
    put_parameters,
    run_back,
    run_layers,
    tied_names,
    unpacked,
)
from bamboo.runtime.device.staging import DataOnDevice
from bamboo.runtime.step.factors import Record, Recorder
from bamboo.topology.strategy import Strategy

CPU = torch.device("cpu")


@dataclass(slots=True, kw_only=True)
class Pending:
    """A microbatch between its forward and its backward: the graph hangs on `output`."""

    input: Tensors
    """The leaves that collect the gradients for the stage before; () once they are sent."""
    output: Tensors
    """The input of the next stage; on the last stage the loss, divided by the step's count."""
    loss: Tensor | None
    """Sum of the loss over the microbatch, on the last stage only; None after the backward."""
    statistics: Sequence[Tensor] = ()
    """Of the stage's batch norms, see `BatchNorms.taken`."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Those of the microbatch, on the last stage only, as `measured` gives them."""
    record: Record | None = None
    """Of the factors of weights' gradients, where some are wanted."""
    joints: Sequence[tuple[int, Tensors, Tensors]] = ()
    """Where its graph is cut, lowest first: the layer that a part begins with, the output of the
    part below, and the leaves that the part above runs on in its place."""


class Stage:
    """The layers of one stage with their parameters, in global order.

    Every loss is divided by what `data` counts for the whole step. `values`: its parameters, and
    buffers where they are known, by global name, where they are not the layers' own initial values;
    they are taken, not copied, where they lie at `place`, the device that computes. `recompute`: a
    backward computes its layers again, but for the model's last one. Raises ValueError when a value
    has another shape.
    """

    def __init__(
        self,
        workload: Workload,
        data: DataOnDevice,
        strategy: Strategy,
        *,
        stage: int,
        values: Mapping[str, Tensor] | None = None,
        place: torch.device = CPU,
        recompute: bool = False,
    ) -> None:
        placement, semantics = strategy.placement, strategy.semantics
        self.stage = stage
        self.is_first = stage == 0
        self.is_last = stage == placement.grid.stages - 1
        self._workload = workload
        self._data = data
        self.seed = semantics.seed
        self.precision = semantics.precision
        self._again = range(len(workload.layers) - 1) if recompute else range(0)
        build = build_layer if values is None else build_shell
        self.layers = [(i, build(workload, i, semantics.seed)) for i in placement.layers_of(stage)]
        if values is not None:
            for i, layer in self.layers:
                own = {n: x.to(place) for n, x in values.items() if n.startswith(f"{i}.")}
                put_parameters(layer, {n.removeprefix(f"{i}."): x for n, x in own.items()})
        for _, layer in self.layers:
            layer.to(place)
        self.untrained = Untrained(self.layers)
        self.factors = Recorder(self.layers, self._again)
        """Of weights' gradients; nothing is recorded until it is told of which."""
        named = named_parameters(self.layers)
        self.names = [name for name, p in named if p.requires_grad]
        """Of the trained parameters."""
        self.params = [parameter for _, parameter in named if parameter.requires_grad]
        changing = (*self.params, *self.untrained.norms.buffers.values())
        self._stepped = {tensor.untyped_storage().data_ptr() for tensor in changing}
        """Where the tensors lie that a step changes."""
        users = tied_names(workload)
        self.counts_in_norm = [name not in users for name in self.names]
        """False for the copies of tied parameters: only their owner counts."""

    def input_of(self, step: int, microbatch: int) -> Tensors:
        """The first stage's input: that of the microbatch with this global index."""
        return self._data.microbatch(step, microbatch)[0]

    def forward(self, x: Tensors, step: int, microbatch: int, cuts: Sequence[int] = ()) -> Pending:
        """Run the layers on one microbatch (global index) and keep the graph. Those tensors of the
        input collect a gradient that require one. `cuts`: layers (global indices) before which the
        graph is cut as it is between two stages, so that its backward can stand there."""
        leaves, before = as_leaves(x), self._versions()
        self.untrained.norms.begin()
        with self.factors.forward() as record:
            y, joints = self._in_parts(leaves, step, microbatch, sorted(cuts))
        statistics = self.untrained.norms.taken()
        self._check_unwritten(before)
        if not self.is_last:
            sent = self._apart(y)
            return Pending(
                input=leaves,
                output=sent,
                loss=None,
                statistics=statistics,
                record=record,
                joints=joints,
            )
        targets = self._data.microbatch(step, microbatch)[1]
        loss = self._workload.loss(unpacked(y), unpacked(targets))
        return Pending(
            input=leaves,
            output=(loss / self._data.count(step),),
            loss=loss,
            statistics=statistics,
            metrics=measured(self._workload, y, targets),
            record=record,
            joints=joints,
        )

    def _in_parts(
        self, x: Tensors, step: int, microbatch: int, cuts: Sequence[int]
    ) -> tuple[Tensors, Sequence[tuple[int, Tensors, Tensors]]]:
        """The output of the layers, and the joints between their parts."""
        joints = []
        indices = [index for index, _ in self.layers]
        bounds = [0, *map(indices.index, cuts), len(indices)]
        for begin, end in pairwise(bounds):
            if begin:
                below, x = x, as_leaves(x)
                joints.append((indices[begin], below, x))
            x = run_layers(
                self.layers[begin:end],
                x,
                self._again,
                seed=self.seed,
                step=step,
                microbatch=microbatch,
                precision=self.precision,
            )
        return x, joints

    def evaluate(self, x: Tensors, microbatch: int) -> Tensors:
        """Run the layers in eval mode on one microbatch (global index) of an evaluation; nothing of
        them changes, and no graph is kept."""
        before = self._versions()
        y = evaluate(
            self.layers, x, seed=self.seed, microbatch=microbatch, precision=self.precision
        )
        self._check_unwritten(before)
        return self._apart(y)

    def measure(self, y: Tensors, targets: Tensors) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss and metrics of an evaluated microbatch, on the last stage."""
        with torch.no_grad():
            loss = self._workload.loss(unpacked(y), unpacked(targets))
        return loss, measured(self._workload, y, targets)

    def _apart(self, y: Tensors) -> Tensors:
        """What is sent is kept for two steps, and a parameter that is handed on changes in them."""
        return tuple(t.clone() if t.untyped_storage().data_ptr() in self._stepped else t for t in y)

    def measured_forward(
        self, x: Tensors, step: int, microbatch: int, cuts: Sequence[int] = ()
    ) -> tuple[Pending, int]:
        """The same as `forward`, and the bytes that autograd saved in addition to parameters and
        buffers, of which it may hold frozen ones, too."""
        there = (x for _, layer in self.layers for x in (*layer.parameters(), *layer.buffers()))
        own = {x.untyped_storage().data_ptr() for x in there}
        saved: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            pending = self.forward(x, step, microbatch, cuts)
        return pending, sum(saved.values())

    def loss_of(self, output: Tensors, step: int, microbatch: int) -> Tensor:
        """The loss of the last stage's output, a sum over the microbatch."""
        targets = self._data.microbatch(step, microbatch)[1]
        return self._workload.loss(unpacked(output), unpacked(targets))

    def backward(self, pending: Pending, gradients: Gradients | None) -> Gradients:
        """Add to the parameters' gradients; returns the gradients of the input.

        `gradients` are those of the output, None on the last stage.
        """
        out: Gradients = ()
        for _, run_part in self.backward_parts(pending, gradients):
            out = run_part()
        return out

    def backward_parts(
        self, pending: Pending, gradients: Gradients | None
    ) -> Iterator[tuple[range, Callable[[], Gradients]]]:
        """The same in parts, from the last layer down: the layers of each (global indices), and
        what runs it, which returns the gradients of the part's input. Each part is run before the
        next one is asked for."""
        above = self.layers[-1][0] + 1
        output = pending.output
        for first, below, leaves in reversed(pending.joints):
            yield range(first, above), partial(self._back, pending, output, gradients, leaves)
            above, output = first, below
            gradients = tuple(leaf.grad for leaf in leaves)
        yield range(self.layers[0][0], above), partial(self._last_back, pending, output, gradients)

    def _last_back(
        self, pending: Pending, output: Tensors, gradients: Gradients | None
    ) -> Gradients:
        out = self._back(pending, output, gradients, pending.input)
        self.untrained.add(pending.statistics)
        return out

    def _back(
        self, pending: Pending, output: Tensors, gradients: Gradients | None, leaves: Tensors
    ) -> Gradients:
        before = self._versions()
        with self.factors.backward(pending.record):
            run_back(output, gradients)
        self._check_unwritten(before)
        return tuple(leaf.grad for leaf in leaves)

    def _versions(self) -> list[int]:
        """What torch counts at each write into a trained parameter."""
        return [parameter._version for parameter in self.params]

    def _check_unwritten(self, before: Sequence[int]) -> None:
        """Raise ValueError where a layer has written into a trained parameter since `before`: a
        node that computes the microbatch again would write again."""
        for name, one, other in zip(self.names, before, self._versions(), strict=True):
            if one != other:
                raise ValueError(
                    f"a layer changed its param/{name} while it ran; only the optimizer changes a "
                    "trained parameter, so compute with a changed copy of it"
                )

    def take_gradients(self, positions: Iterable[int]) -> list[Tensor]:
        """The gradients accumulated since they were last taken, of the parameters at these
        positions; zeros where none. Factors that were recorded stay to be taken."""
        out: list[Tensor] = []
        for position in positions:
            parameter = self.params[position]
            grad = parameter.grad
            out.append(torch.zeros_like(parameter) if grad is None else grad)
            parameter.grad = None
        return out

    def drop_gradients(self) -> None:
        """Forget what was accumulated and recorded since it was last taken."""
        for parameter in self.params:
            parameter.grad = None
        self.untrained.take()
        self.factors.forget()

    def parameter_bytes(self) -> int:
        """Bytes of the trained parameters alone."""
        return sum(p.numel() * p.element_size() for p in self.params)
