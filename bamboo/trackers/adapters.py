"""One adapter for each tracker, over the tracker's own library.

Rule: a library is imported when its adapter is made, in a process of its own, and reads its own
environment variables there: addresses, credentials, modes. One tracker run belongs to one run of
Bamboo, by a key that each later launcher finds again.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bamboo.trackers.points import Point

OUTCOMES_WELL = ("done", "stopped", "budget")
_EVENTS_KEPT = 4000
"""Characters of the newest events in a tag of mlflow, which holds 5,000 at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What every adapter is told of the run."""

    run: str
    key: str
    """The same for every launcher of the run, and of no other run."""
    project: str
    folder: Path
    """The tracker's own folder in the run's."""
    job: Mapping[str, Any]
    """The resolved job, by key."""


class Adapter(Protocol):
    """A tracker that a run is logged to. Methods raise whatever the library raises."""

    def job(self, values: Mapping[str, Any], *, step: int) -> None:
        """Show the resolved job, by key; `step` is that from which it holds."""

    def log(self, points: Sequence[Point]) -> None:
        """Take these points, and return once the library has them."""

    def finish(self, outcome: str) -> None:
        """Give everything away. `outcome` is that of the run; "" where it goes on without us."""


def key_of(run: str, started_s: float) -> str:
    """The key of a run, since another home may have a run of the same name."""
    return f"{run}-{hashlib.sha256(f'{run} {started_s!r}'.encode()).hexdigest()[:8]}"


class _TensorBoard:
    """Event files in the run's own folder. A later launcher writes another file beside them, which
    TensorBoard reads as the same run."""

    def __init__(self, tracked: TrackedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event = Event
        self._summary = Summary
        self._tensor = TensorProto
        self._shape = TensorShapeProto
        self._is_text = SummaryMetadata(
            plugin_data=SummaryMetadata.PluginData(
                plugin_name="text", content=TextPluginData(version=0).SerializeToString()
            )
        )
        self._writer = EventFileWriter(str(tracked.folder))

    def job(self, values: Mapping[str, Any], *, step: int) -> None:
        rows = "".join(f"| {key} | {value} |\n" for key, value in values.items())
        self._text("job", f"| key | value |\n|---|---|\n{rows}", step=step, at_s=time.time())

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            if point.text:
                self._text("events", point.text, step=point.step, at_s=point.at_s)
            found = [self._summary.Value(tag=t, simple_value=v) for t, v in point.values.items()]
            if found:
                self._add(found, step=point.step, at_s=point.at_s)
        self._writer.flush()

    def _text(self, tag: str, text: str, *, step: int, at_s: float) -> None:
        shape = self._shape(dim=[self._shape.Dim(size=1)])
        tensor = self._tensor(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
        value = self._summary.Value(
            tag=f"{tag}/text_summary", metadata=self._is_text, tensor=tensor
        )
        self._add([value], step=step, at_s=at_s)

    def _add(self, values: list[Any], *, step: int, at_s: float) -> None:
        summary = self._summary(value=values)
        self._writer.add_event(self._event(wall_time=at_s, step=step, summary=summary))

    def finish(self, outcome: str) -> None:
        self._writer.close()


class _Trackio:
    """A run of a project, in trackio's own SQLite files, a server or a Space."""

    def __init__(self, tracked: TrackedRun) -> None:
        import trackio

        self._run = trackio.init(
            project=tracked.project,
            name=tracked.key,
            config=dict(tracked.job),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def job(self, values: Mapping[str, Any], *, step: int) -> None:
        """It was given when the run was opened."""

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            values: dict[str, Any] = dict(point.values)
            self._run.log(values | ({"event": point.text} if point.text else {}), step=point.step)

    def finish(self, outcome: str) -> None:
        self._run.finish()


class _Wandb:
    """A run of a project. Its own step counts lines; `step` is that of the training."""

    def __init__(self, tracked: TrackedRun) -> None:
        import wandb

        folder = os.environ.get("WANDB_DIR") or str(tracked.folder)
        os.makedirs(folder, exist_ok=True)
        self._run = wandb.init(
            project=tracked.project,
            id=tracked.key,
            name=tracked.run,
            resume="allow",
            dir=folder,
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def job(self, values: Mapping[str, Any], *, step: int) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            line: dict[str, Any] = {"step": point.step, "t": point.at_s, **point.values}
            self._run.log(line | ({"event": point.text} if point.text else {}))

    def finish(self, outcome: str) -> None:
        self._run.finish(exit_code=0 if outcome in ("", *OUTCOMES_WELL) else 1)


class _MLflow:
    """A run of an experiment, found again by its tag `bamboo.run`."""

    def __init__(self, tracked: TrackedRun) -> None:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._param = Param
        self._tag = RunTag
        self._client = MlflowClient()
        there = self._client.get_experiment_by_name(tracked.project)
        found = there.experiment_id if there else self._client.create_experiment(tracked.project)
        runs = self._client.search_runs([found], f"tags.`bamboo.run` = '{tracked.key}'")
        tags = {"bamboo.run": tracked.key}
        run = runs[0] if runs else self._client.create_run(found, run_name=tracked.run, tags=tags)
        self._id: str = run.info.run_id
        self._params: dict[str, str] = dict(run.data.params)
        self._events: str = run.data.tags.get("bamboo.events", "")
        self._client.update_run(self._id, status="RUNNING")

    def job(self, values: Mapping[str, Any], *, step: int) -> None:
        """A parameter of mlflow never changes, so what a later part changes becomes a tag."""
        texts = {key: str(value)[:500] for key, value in values.items()}
        new = [self._param(k, v) for k, v in texts.items() if k not in self._params]
        changed = [
            self._tag(f"from step {step}: {key}", value)
            for key, value in texts.items()
            if self._params.get(key, value) != value
        ]
        for params in _in_parts(new, 100):
            self._client.log_batch(self._id, params=params)
        for tags in _in_parts(changed, 100):
            self._client.log_batch(self._id, tags=tags)

    def log(self, points: Sequence[Point]) -> None:
        metrics = [
            self._metric(_allowed(name), value, int(point.at_s * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for some in _in_parts(metrics, 900):
            self._client.log_batch(self._id, metrics=some)
        if events := _event_lines(points):
            self._events = f"{self._events}\n{events}".strip()[-_EVENTS_KEPT:]
            self._client.set_tag(self._id, "bamboo.events", self._events)

    def finish(self, outcome: str) -> None:
        if outcome:
            ended = {"done": "FINISHED", "stopped": "KILLED", "budget": "KILLED"}
            self._client.set_terminated(self._id, status=ended.get(outcome, "FAILED"))


def _in_parts(values: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    """A server refuses more in one request."""
    for begin in range(0, len(values), most):
        yield values[begin : begin + most]


def _allowed(name: str) -> str:
    """A name with the characters that mlflow takes alone."""
    return re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)


def _event_lines(points: Iterable[Point]) -> str:
    return "\n".join(f"step {point.step}: {point.text}" for point in points if point.text)


class _Otlp:
    """Gauges and log records, sent with the time that they are of, as a resource of the run."""

    def __init__(self, tracked: TrackedRun) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk._logs import ReadableLogRecord
        from opentelemetry.sdk.metrics import export
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._export = export
        self._record = LogRecord
        self._readable = ReadableLogRecord
        self._level = SeverityNumber.INFO
        self._metrics = OTLPMetricExporter()
        self._logs = OTLPLogExporter()
        self._scope = InstrumentationScope("bamboo")
        names = {"service.name": tracked.project, "service.instance.id": tracked.key}
        self._resource = Resource.create({**names, "bamboo.run": tracked.run})

    def job(self, values: Mapping[str, Any], *, step: int) -> None:
        body = json.dumps(dict(values))
        self._send_texts([Point(step=step, at_s=time.time(), text=body)], name="bamboo.job")

    def log(self, points: Sequence[Point]) -> None:
        series: dict[str, list[Any]] = {}
        for point in points:
            measured = {"run/step": float(point.step), **point.values} if point.values else {}
            for name, value in measured.items():
                series.setdefault(f"bamboo.{name.replace('/', '.')}", []).append(
                    self._export.NumberDataPoint({}, 0, int(point.at_s * 1e9), value)
                )
        if series:
            self._send_series(series)
        if events := [point for point in points if point.text]:
            self._send_texts(events, name="bamboo.event")

    def _send_series(self, series: Mapping[str, list[Any]]) -> None:
        of = self._export
        metrics = [of.Metric(name, None, "", of.Gauge(found)) for name, found in series.items()]
        scope = of.ScopeMetrics(self._scope, metrics, "")
        data = of.MetricsData([of.ResourceMetrics(self._resource, [scope], "")])
        _must_have_taken(self._metrics.export(data))

    def _send_texts(self, points: Sequence[Point], *, name: str) -> None:
        records = [
            self._readable(
                self._record(
                    timestamp=int(point.at_s * 1e9),
                    observed_timestamp=time.time_ns(),
                    severity_number=self._level,
                    body=point.text,
                    attributes={"step": point.step},
                    event_name=name,
                ),
                self._resource,
                self._scope,
            )
            for point in points
        ]
        _must_have_taken(self._logs.export(records))

    def finish(self, outcome: str) -> None:
        self._metrics.shutdown()
        self._logs.shutdown()


def _must_have_taken(result: Any) -> None:
    if result.name != "SUCCESS":
        raise ConnectionError("the collector did not take what was sent")


ADAPTERS: dict[str, Callable[[TrackedRun], Adapter]] = {
    "tensorboard": _TensorBoard,
    "trackio": _Trackio,
    "wandb": _Wandb,
    "mlflow": _MLflow,
    "otlp": _Otlp,
}
