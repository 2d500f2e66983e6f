"""How long each layer of a whole model takes, with its input of a microbatch.

Rule: times are medians; layers that the same function makes, for an input of the same shapes, are
timed together. Of several microbatches the mean counts, and the spread is said.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bamboo.config.tree import JobConfig
from bamboo.models import Workload
from bamboo.runtime.check.one_layer import OneLayer, Pass, idle_s, kind_of, same
from bamboo.runtime.optim.optimizer import optimizer_of
from bamboo.runtime.step.norm import CLIP_FACTOR, end_step

REPEATS = 8
"""The least number of repeats in which layers that are alike are timed."""
MOST_REPEATS, REPEATS_S = 100, 0.05
"""The most repeats, and the time for them: a layer that counts its calls may show only then."""
UPDATES = 3
"""How often the end of a step is timed, for one of the layers that are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of one layer, in ms."""

    forward_ms: float
    backward_ms: float
    optimizer_ms: float
    spread: float = 0.0
    """Of several microbatches: the longest forward and backward less the shortest, over their
    mean."""


def mean_of(times: Sequence[Times]) -> Times:
    """One layer's times over several microbatches."""
    both = [one.forward_ms + one.backward_ms for one in times]
    mean = statistics.fmean(both)
    return Times(
        forward_ms=statistics.fmean(one.forward_ms for one in times),
        backward_ms=statistics.fmean(one.backward_ms for one in times),
        optimizer_ms=statistics.fmean(one.optimizer_ms for one in times),
        spread=(max(both) - min(both)) / mean if mean else 0.0,
    )


class Timing:
    """Times the layers of a model; `tell` is called once for each."""

    def __init__(
        self,
        job: JobConfig,
        workload: Workload,
        layers: Sequence[OneLayer],
        tell: Callable[[], None],
    ) -> None:
        self._job = job
        self._workload = workload
        self._layers = layers
        self._tell = tell

    def of(self, first: Sequence[Pass]) -> list[Times]:
        """The times of every layer, with its input of the `first` passes."""
        alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, one in enumerate(first):
            trained = tuple(p.requires_grad for p in self._layers[index].layer.parameters())
            kind = (id(self._workload.layers[index]), trained, *kind_of(one.input))
            alike[kind].append(index)
        out: dict[int, Times] = {}
        for indices in alike.values():
            times = self._time_one(indices[len(indices) // 2], first)
            for index in indices:
                out[index] = times
                self._tell()
        return [out[index] for index in range(len(self._layers))]

    def _time_one(self, index: int, first: Sequence[Pass]) -> Times:
        one, begun = self._layers[index], first[index]
        runs: list[Pass] = []
        end_s = time.thread_time() + REPEATS_S
        while len(runs) < REPEATS or (len(runs) < MOST_REPEATS and time.thread_time() < end_s):
            run = one.forward(begun.input, 0, 0)
            one.backward(run, begun.given)
            self._check_repeats(one, run, runs)
            if runs:
                run.gradients = {}
                run.output = run.input = run.given = ()
            runs.append(run)
        return Times(
            forward_ms=statistics.median(run.forward_ms for run in runs),
            backward_ms=statistics.median(run.backward_ms for run in runs),
            optimizer_ms=self._update_ms(one, runs[0]),
        )

    def _check_repeats(self, one: OneLayer, run: Pass, before: Sequence[Pass]) -> None:
        """A layer that keeps something between calls may show it only after several calls."""
        if not before:
            return
        found, then = ((*one.output, *one.gradients.values()) for one in (run, before[0]))
        if not same(found, then):
            raise one.place.refuse(
                f"gives another output or gradient when it runs the same microbatch "
                f"{len(before) + 1} times",
                "keep nothing from call to call",
            )

    def _update_ms(self, one: OneLayer, run: Pass) -> float:
        """Time the end of a step, on copies, because the layer must stay as it is."""
        params = {n: p.detach().clone() for n, p in one.layer.named_parameters() if p.requires_grad}
        grads = [run.gradients[name] for name in params]
        optimizer = optimizer_of(self._job.train, self._workload)
        kept = optimizer.new_state(params)
        clip_factor = CLIP_FACTOR if self._job.train.clip_norm > 0 else 1.0
        seconds = []
        for _ in range(UPDATES):
            begin_s = idle_s(run.input[0])
            end_step(optimizer, [*params.values()], grads, kept, clip_factor=clip_factor)
            seconds.append(idle_s(run.input[0]) - begin_s)
        return 1e3 * statistics.median(seconds)
