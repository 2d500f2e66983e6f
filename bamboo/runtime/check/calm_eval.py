"""The evaluations of a calm run, or of what was trained: layers in eval mode, one microbatch after
the other.

Rule: as of the reference, only layers, data and keyed randomness are shared with the runtime. Which
evaluation ends a run is decided here again, by its numbers alone.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from bamboo.config.check_eval import LOSS
from bamboo.config.tree import JobConfig
from bamboo.data.evaluation import EvalData
from bamboo.models import Workload, evaluate, mean_metrics, measured, unpacked
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.device.staging import place_of
from bamboo.runtime.step.norm import mean_loss


class CalmEval:
    """Evaluates a calm run before its next step; `stopped` tells whether the run ends there."""

    def __init__(self, job: JobConfig, workload: Workload, data: EvalData) -> None:
        self._job = job
        self._workload = workload
        self._data = data
        self._best: float | None = None
        self._worse = self._segment = 0

    @property
    def stopped(self) -> bool:
        """Whether so many evaluations in a row were no better than the best one."""
        stop = self._job.eval.stop
        return bool(stop.metric) and self._worse >= stop.patience

    def is_due(self, run: CalmRun) -> bool:
        """Whether there is an evaluation where the run stands."""
        return run.steps_done > 0 and run.steps_done % self._job.eval.every_steps == 0

    def of(self, run: CalmRun) -> tuple[float, dict[str, float]]:
        """Loss and metrics."""
        place = place_of(self._job.cluster)
        with run.norms.running():
            loss, metrics = evaluated(self._job, self._workload, self._data, run.layers, place)
        segment = sum(one.to_step <= run.steps_done for one in self._job.segments)
        if segment != self._segment:  # a segment's evaluations count by themselves
            self._best = None
            self._worse = 0
            self._segment = segment
        self._judge({LOSS: loss, **metrics}.get(self._job.eval.stop.metric, math.nan))
        return loss, metrics

    def _judge(self, value: float) -> None:
        higher, best = self._job.eval.stop.better == "higher", self._best
        better = best is None or (value > best if higher else value < best)
        if math.isfinite(value) and better:
            self._best = value
            self._worse = 0
        else:
            self._worse += 1


def evaluated(
    job: JobConfig,
    workload: Workload,
    data: EvalData,
    layers: Sequence[tuple[int, nn.Module]],
    place: torch.device,
    *,
    told: Callable[[int, int], None] = lambda done, of_all: None,
) -> tuple[float, dict[str, float]]:
    """Loss and metrics of these layers, which lie at `place`; `told` is called with (microbatches
    done, of all)."""
    losses, pairs = [], []
    for index in range(data.total):
        inputs, targets = (tuple(t.to(place) for t in part) for part in data.microbatch(index))
        train = job.train
        y = evaluate(layers, inputs, seed=train.seed, microbatch=index, precision=train.precision)
        with torch.no_grad():
            losses.append(workload.loss(unpacked(y), unpacked(targets)).item())
        found = measured(workload, y, targets)
        pairs.append({name: pair.tolist() for name, pair in found.items()})
        told(index + 1, data.total)
    return mean_loss(losses, data.count), mean_metrics(pairs)
