"""Compares the evaluations that a run recorded with those of its calm run.

Rule: an evaluation is compared where the calm run stands before its step, and every report of it
counts. One before the last step of a stopped run need not have taken place.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bamboo.config.tree import JobConfig
from bamboo.data.evaluation import check_eval_digest, load_eval
from bamboo.models import Workload
from bamboo.runtime.check.calm_eval import CalmEval
from bamboo.runtime.check.compared import Recorded, compare, difference, recorded_of
from bamboo.runtime.check.reference import CalmRun


class Evaluations:
    """The evaluations of one run, in the order of its steps."""

    def __init__(
        self,
        job: JobConfig,
        workload: Workload,
        records: str,
        brought: bytearray | Path | None = None,
        *,
        stops: bool = True,
    ) -> None:
        """`records`: the run's metrics.jsonl. `brought`: the data of the evaluation, if any.
        `stops`: whether they are all here, so that it shows which of them ends the run.
        Raises InputError where the data of the evaluation are not here."""
        data = load_eval(job, workload.data, workload.eval_data, brought)
        check_eval_digest(job, data)
        self._calm = None if data is None else CalmEval(job, workload, data)
        self._found: Mapping[int, Sequence[Recorded]] = recorded_of(records, "evaluation")
        self._steps = job.train.steps
        self._stops = stops
        self.count = 0
        """How many were compared."""

    def compare(self, run: CalmRun, *, last: int) -> dict[str, Any]:
        """What differs first of the evaluation before the calm run's next step, as fields of the
        result; {} when there is none, or all is equal. `last`: the steps that the run has done."""
        step, calm = run.steps_done, self._calm
        found = self._found.get(step, ())
        if calm is None or not calm.is_due(run) or (step == last < self._steps and not found):
            return {}
        loss, metrics = calm.of(run)
        self.count += 1
        if self._stops and calm.stopped and step < last:
            return difference(step, "the end that evaluations make", step, last)
        ours = Recorded(loss=loss, metrics=metrics)
        return compare(step, ours, found, what="evaluation ")
