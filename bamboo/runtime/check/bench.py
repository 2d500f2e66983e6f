"""Measures one layer: runs it as a stage of its own, and counts and times what it does.

Rule: forward, backward and the end of the step run by the same code as in the executor; each timing
begins and ends with an idle device.
"""

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from bamboo.models import Gradients, Tensors, as_leaves
from bamboo.planner.profiles.profiled import LayerProfile
from bamboo.runtime.check.parameters import Parameters
from bamboo.runtime.device.work import WorkCounter
from bamboo.runtime.optim.optimizer import Optimizer
from bamboo.runtime.step.norm import CLIP_FACTOR, end_step
from bamboo.runtime.step.stage import Pending, Stage

LEAST_REPEATS = 3
MOST_REPEATS = 40
GRADIENT_SHARE = 1e-3
"""This share of the output stands in for its gradient: same shape, no special values."""
STEP, MICROBATCH = 0, 0
T = TypeVar("T")


class Bench:
    """A stage of one layer, with the input and an output's gradient of one microbatch."""

    def __init__(
        self, stage: Stage, x: Tensors, *, optimizer: Optimizer, clips: bool, accumulates: bool
    ) -> None:
        """`accumulates`: most microbatches add their gradient to one that is there already."""
        self._stage = stage
        self._x = x
        self._optimizer = optimizer
        self._accumulates = accumulates
        self._clip_factor = CLIP_FACTOR if clips else 1.0
        self._kept = optimizer.new_state(dict(zip(stage.names, stage.params, strict=True)))
        self._gradients: Gradients | None = None
        self._seconds: dict[str, list[float]] = {"forward": [], "backward": [], "update": []}
        self.output = x
        """The layer's output, which is the next layer's input, once it has warmed up; for
        the last layer, the loss."""
        self._output_bytes = self._activation_bytes = self._input_gradient_bytes = 0
        index, layer = stage.layers[0]
        self.parameters = Parameters(index, layer, stage.factors)
        """What is found of the layer's parameters, once it has warmed up."""
        self._counters = {kind: WorkCounter() for kind in self._seconds}

    @property
    def repeats(self) -> int:
        """How often the layer was timed."""
        return len(self._seconds["update"])

    def warm_up(self) -> None:
        """Run twice: once to count the bytes, once to count the work."""

        def seen(_module: object, _inputs: object, output: object) -> None:
            # Anything else is refused when it is taken.
            outputs = output if isinstance(output, tuple) else (output,)
            self._output_bytes = sum(t.nbytes for t in outputs if isinstance(t, Tensor))

        self.parameters.begin()
        hook = self._stage.layers[0][1].register_forward_hook(seen)
        pending, self._activation_bytes = self._stage.measured_forward(self._x, STEP, MICROBATCH)
        hook.remove()
        self.output = as_leaves(pending.output)
        if not self._stage.is_last:
            self._gradients = tuple(
                t.detach() * GRADIENT_SHARE if t.requires_grad else None for t in self.output
            )
        self._backward(pending)
        self.parameters.took(pending.record)
        self._update()
        with self._counters["forward"]:
            pending = self._forward()
        with self._counters["backward"]:
            self._backward(pending)
        with self._counters["update"]:
            self._update()

    def time_once(self) -> None:
        """One forward, its backward, and the end of a step."""
        if not self._accumulates:
            self._stage.take_gradients(range(len(self._stage.params)))
            self._stage.untrained.take()
        pending = self._timed("forward", self._forward)
        self._timed("backward", lambda: self._backward(pending))
        self._timed("update", self._update)

    def found(self, index: int, microbatches: int) -> LayerProfile:
        """The medians and all else that was measured. Call it after the layer was timed. A step has
        so many microbatches."""
        forward_s, backward_s, update_s = self._seconds.values()
        forward, backward, update = (counter.work for counter in self._counters.values())
        return LayerProfile(
            name=type(self._stage.layers[0][1]).__name__,
            measured_as=index,
            forward_s=statistics.median(forward_s),
            backward_s=statistics.median(backward_s),
            optimizer_s=statistics.median(update_s),
            scatter=scatter([f + b for f, b in zip(forward_s, backward_s, strict=True)]),
            repeats=self.repeats,
            parameters=sum(p.numel() for p in self._stage.params),
            parameter_bytes=self._stage.parameter_bytes(),
            frozen_bytes=self._stage.untrained.size_bytes,
            moment_bytes=sum(x.nbytes for own in self._kept.tensors.values() for x in own.values()),
            output_bytes=self._output_bytes,
            input_gradient_bytes=self._input_gradient_bytes,
            activation_bytes=self._activation_bytes,
            forward=forward,
            backward=backward,
            optimizer=update,
            synced=self.parameters.facts(microbatches),
        )

    def _forward(self) -> Pending:
        return self._stage.forward(self._x, STEP, MICROBATCH)

    def _backward(self, pending: Pending) -> None:
        back = self._stage.backward(pending, self._gradients)
        self._input_gradient_bytes = sum(g.nbytes for g in back if g is not None)

    def _update(self) -> None:
        params = self._stage.params
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        end_step(self._optimizer, params, grads, self._kept, clip_factor=self._clip_factor)

    def _timed(self, kind: str, work: Callable[[], T]) -> T:
        begin_s = self._idle_s()
        out = work()
        self._seconds[kind].append(self._idle_s() - begin_s)
        return out

    def _idle_s(self) -> float:
        """The time once the device has done all that it was given."""
        place = self._x[0].device
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        return time.perf_counter()


def scatter(seconds: list[float]) -> float:
    """The interquartile range over the median."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle if middle > 0 else 0.0
