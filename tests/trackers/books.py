"""The books of a run, written by hand."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from bamboo.config.tree import JobConfig, LogConfig, TrainConfig
from bamboo.ids import RunId
from bamboo.jsonl import LineWriter
from bamboo.runs.run_folder import RunFolder, write_json
from bamboo.telemetry.records import EvaluationRecord, EventRecord, MetricRecord

START_S = 1_700_000_000.0


class Books:
    """Writes lines as a launcher does."""

    def __init__(self, home: Path, *, to: tuple[str, ...] = ("wandb",)) -> None:
        self.folder = RunFolder(id=RunId("r"), path=home / "r")
        self.folder.events.mkdir(parents=True)
        self.job = JobConfig(log=LogConfig(to=to), train=TrainConfig(steps=8))
        self.resolve()

    def resolve(self, *, steps: int = 8, from_step: int = 0) -> None:
        job = replace(self.job, train=replace(self.job.train, steps=steps))
        body = {"started_s": START_S, "from_step": from_step, "job": asdict(job)}
        write_json(self.folder.resolved, json.loads(json.dumps(body)))

    def step(self, step: int, *, loss: float = 2.5) -> None:
        """The step of this index, from 0."""
        record = MetricRecord(
            step=step,
            loss=loss,
            usd=0.25,
            samples_per_s=8.0,
            samples_per_usd=100.0,
            at_s=START_S + step,
            metrics={"accuracy": 0.5},
            nodes=4,
        )
        self._write(self.folder.metrics, record.to_json())

    def evaluation(self, step: int, *, loss: float = 2.0) -> None:
        record = EvaluationRecord(
            step=step, loss=loss, count=8, unit="token", metrics={}, seconds=0.5,
            at_s=START_S + step,
        )  # fmt: skip
        self._write(self.folder.metrics, record.to_json())

    def event(self, kind: str, reason: str, *, step: int) -> None:
        record = EventRecord(
            t_s=START_S + step, run="r", generation=1, node="launcher", kind=kind, step=step,
            data={"reason": reason, "version": 1},
        )  # fmt: skip
        self._write(self.folder.events / "launcher.jsonl", record.to_json())

    def _write(self, path: Path, line: str) -> None:
        with LineWriter(path) as writer:
            writer.write(line)
