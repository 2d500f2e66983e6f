"""The two records of a run's JSON-lines files, and how a file is read that may still be growing.

An event says what happened on a node; a metric says what one step cost and achieved. Both carry the
version of their schema, so that a reader can refuse an unknown version instead of guessing.

Rule: readers ignore unknown keys, and a torn last line does not count yet.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from bamboo.errors import InputError
from bamboo.named_files import open_named

SCHEMA_VERSION = 1
EVALUATION = "evaluation"
"""The kind of a line of `metrics.jsonl` that is of no step."""
MOST_STEPS = 10**12
"""No run has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One line of `events/<node>.jsonl`."""

    t_s: float
    """Unix time at the writer."""
    run: str
    generation: int
    node: str
    kind: str
    step: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The line, without its newline: `{v, t, run, gen, node, kind, step?, data}`."""
        body: dict[str, Any] = {
            "v": SCHEMA_VERSION,
            "t": self.t_s,
            "run": self.run,
            "gen": self.generation,
            "node": self.node,
            "kind": self.kind,
        }
        if self.step is not None:
            body["step"] = self.step
        return json.dumps(body | {"data": dict(self.data)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "EventRecord":
        """Read a line. Raises InputError if it is not an event of this schema."""
        raw = _record(line, what="event")
        try:
            return cls(
                t_s=float(raw["t"]),
                run=str(raw["run"]),
                generation=int(raw["gen"]),
                node=str(raw["node"]),
                kind=str(raw["kind"]),
                step=None if raw.get("step") is None else int(raw["step"]),
                data=dict(raw.get("data", {})),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"an event record lacks or garbles {error}: {line[:120]}; take the original"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRecord:
    """One line of `metrics.jsonl`: a finished step."""

    step: int
    """Index of the step; the first is 0."""
    loss: float
    """By what the step counts: nats per token for text. JSON keeps a float64 exactly, and
    `loss_hex` gives all its bits."""
    usd: float
    """Modelled dollars of the run so far."""
    tokens_per_s: float | None = None
    """None where the data are no text."""
    tokens_per_usd: float | None = None
    at_s: float | None = None
    """Unix time at which the step was taken; None if it was not recorded."""
    samples_per_s: float = 0.0
    samples_per_usd: float = 0.0
    count: int = 0
    """What the step's samples weigh together; 0 in records of older releases."""
    unit: str = ""
    """What is counted: `token`, `image`; empty in records of older releases."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the model measures beside its loss, by name."""
    nodes: int = 0
    """How many nodes were members then; 0 in records of older releases."""

    def to_json(self) -> str:
        """The line, without its newline."""
        body: dict[str, Any] = {
            "v": SCHEMA_VERSION,
            "step": self.step,
            "loss": self.loss,
            "loss_hex": self.loss.hex(),
            "usd": round(self.usd, 9),
        }
        if self.tokens_per_s is not None and self.tokens_per_usd is not None:
            body["tokens_per_s"] = round(self.tokens_per_s, 3)
            body["tokens_per_usd"] = round(self.tokens_per_usd, 3)
        if self.samples_per_usd:
            body["samples_per_s"] = round(self.samples_per_s, 3)
            body["samples_per_usd"] = round(self.samples_per_usd, 3)
        if self.at_s is not None:
            body["t"] = self.at_s
        if self.count:
            body |= {"count": self.count, "unit": self.unit}
        if self.metrics:
            body["metrics"] = dict(self.metrics)
        if self.nodes:
            body["nodes"] = self.nodes
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "MetricRecord":
        """Read a line. Raises InputError if it is not a metric, or its two losses differ."""
        raw = _record(line, what="metric")
        try:
            record = cls(
                step=int(raw["step"]),
                loss=float(raw["loss"]),
                usd=float(raw["usd"]),
                tokens_per_s=_maybe(raw.get("tokens_per_s")),
                tokens_per_usd=_maybe(raw.get("tokens_per_usd")),
                at_s=_maybe(raw.get("t")),
                samples_per_s=float(raw.get("samples_per_s", 0.0)),
                samples_per_usd=float(raw.get("samples_per_usd", 0.0)),
                count=int(raw.get("count", 0)),
                unit=str(raw.get("unit", "")),
                metrics={str(n): float(x) for n, x in dict(raw.get("metrics", {})).items()},
                nodes=int(raw.get("nodes", 0)),
            )
            if not 0 <= record.step <= MOST_STEPS or not isfinite(record.at_s or 0.0):
                raise ValueError(f"the step {record.step} or its time {record.at_s}")
            same = record.loss.hex() == raw["loss_hex"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"a metric record lacks or garbles {error}: {line[:120]}; take the original"
            ) from error
        if not same:
            raise InputError(
                f"metric of step {record.step}: loss {record.loss!r} is not {raw['loss_hex']}; "
                "the file was edited, take the original"
            )
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """One line of `metrics.jsonl` of kind `evaluation`: what the state before a step gave."""

    step: int
    """The steps that were taken by then."""
    loss: float
    """By what the samples count; it need not be finite."""
    count: int
    unit: str
    metrics: Mapping[str, float]
    seconds: float
    """How long all stood at this boundary for it."""
    at_s: float
    """Unix time at its end."""

    def to_json(self) -> str:
        """The line, without its newline."""
        body = {
            "v": SCHEMA_VERSION,
            "kind": EVALUATION,
            "step": self.step,
            "loss": self.loss,
            "loss_hex": self.loss.hex(),
            "count": self.count,
            "unit": self.unit,
            **({"metrics": dict(self.metrics)} if self.metrics else {}),
            "seconds": round(self.seconds, 6),
            "t": self.at_s,
        }
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "EvaluationRecord":
        """Read a line. Raises InputError if it is not an evaluation."""
        try:
            return cls.of(_record(line, what="evaluation"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"an evaluation lacks or garbles {error}: {line[:120]}; take the original"
            ) from error

    @classmethod
    def of(cls, raw: Mapping[str, Any], *, time: str = "t") -> "EvaluationRecord":
        """From the values of a line, or of a node's report, whose time is `t_s`. Raises KeyError,
        TypeError, ValueError, OverflowError."""
        record = cls(
            step=int(raw["step"]),
            loss=float(raw["loss"]),
            count=int(raw["count"]),
            unit=str(raw["unit"]),
            metrics={str(n): float(x) for n, x in dict(raw.get("metrics", {})).items()},
            seconds=float(raw["seconds"]),
            at_s=float(raw[time]),
        )
        if not 0 < record.step <= MOST_STEPS or not isfinite(record.seconds + record.at_s):
            raise ValueError(f"the step {record.step} or its time {record.at_s}")
        return record


def _maybe(value: Any) -> float | None:
    return None if value is None else float(value)


def _record(line: str, *, what: str) -> dict[str, Any]:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{what} record is not JSON ({error}): {line[:120]}; take the original"
        ) from error
    if not isinstance(raw, dict) or raw.get("v") != SCHEMA_VERSION:
        raise InputError(
            f"{what} record has schema {raw.get('v') if isinstance(raw, dict) else raw!r}, "
            f"this program reads {SCHEMA_VERSION}; use the version that wrote it"
        )
    return raw


# ---------------------------------------------------------------------- reading


class Tail:
    """Reads what was appended since the last look; a missing file counts as empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[str]:
        """The complete, non-empty lines that came since the last call. Raises InputError for a file
        that exists and cannot be read."""
        try:
            with open_named(self._path) as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(
                f"{self._path} cannot be read: {error.strerror}; put the original back, or take "
                "away what is in its place"
            ) from error
        end = data.rfind(b"\n") + 1
        self._offset += end
        text = data[:end].decode("utf-8", errors="replace")
        return [line for line in text.splitlines() if line.strip()]


def read_events(path: Path) -> Iterator[EventRecord]:
    """All whole events of a file; a line torn by a kill is skipped, later ones are read."""
    for line in Tail(path).lines():
        try:
            yield EventRecord.from_json(line)
        except InputError as error:
            if line.rstrip().endswith("}"):
                raise InputError(f"{path}: {error}") from error


def measured(line: str) -> MetricRecord | EvaluationRecord:
    """What a line of `metrics.jsonl` says. Raises InputError."""
    if _is_evaluation(line):
        return EvaluationRecord.from_json(line)
    return MetricRecord.from_json(line)


def read_metrics(path: Path) -> list[MetricRecord]:
    """All metrics of a run, in step order. Raises InputError on a record it cannot read."""
    lines = [line for line in Tail(path).lines() if not _is_evaluation(line)]
    try:
        return sorted(map(MetricRecord.from_json, lines), key=lambda m: m.step)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_evaluations(path: Path) -> list[EvaluationRecord]:
    """All evaluations of a run, in the order of their steps, each once. Raises InputError on a
    record that it cannot read."""
    found: dict[int, EvaluationRecord] = {}
    for line in filter(_is_evaluation, Tail(path).lines()):
        try:
            record = EvaluationRecord.from_json(line)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        found.setdefault(record.step, record)
    return [found[step] for step in sorted(found)]


def _is_evaluation(line: str) -> bool:
    return f'"kind":"{EVALUATION}"' in line
