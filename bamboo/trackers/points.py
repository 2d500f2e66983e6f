"""The books of a run as points for a tracker, and how far a tracker has got in them.

    metrics.jsonl, events/launcher.jsonl  ->  next_batch(position)  ->  points, position behind them

Rule: each line is offered to a tracker at most once, over all launchers and parts of a run. What is
about to be offered is written down first (`Position.trying`). A process that is killed in between
leaves lines of which nobody knows whether the tracker has them, and they count as lost.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bamboo.errors import InputError
from bamboo.named_files import open_named
from bamboo.runs.run_folder import RunFolder, read_text, write_file
from bamboo.telemetry.records import EventRecord, MetricRecord, measured

AT_ONCE_BYTES = 1 << 17
"""Of each file, in one batch: some hundred steps."""
EVENTS = frozenset({
    *("NodeJoined", "NodeLeft", "PeerLost", "NodeFailed", "NoticeReceived", "HandedOver"),
    *("CaughtUp", "CheckpointDone", "CheckpointDamaged", "StoreRefilled", "NonFinite"),
    *("StopRequested", "RunFailed"),
})  # fmt: skip
"""The decisions that a tracker is told of, by the class of their event in `bamboo.core.events`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a tracker is told at a step."""

    step: int
    """Steps taken by then: a step's own loss stands at 1 for the first step."""
    at_s: float
    """Unix time; 0 where it was not recorded."""
    values: Mapping[str, float] = field(default_factory=dict)
    """By name, such as `train/loss`."""
    text: str = ""
    """An event, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a tracker has got in the books of a run."""

    metrics: int = 0
    """Bytes of `metrics.jsonl`, and of `events/launcher.jsonl`, that are behind it."""
    events: int = 0
    taken: int = 0
    """Points that the tracker's library took."""
    lost: int = 0
    """Points that it did not take, or of which nobody knows."""
    trying: int = 0
    """Points before this position that are being offered."""
    job: str = ""
    """A digest of the job that the tracker was told last."""
    why: str = ""
    """Why points were lost the last time."""

    def settled(self, *, why: str = "") -> "Position":
        """When what was being offered has been taken or, with a reason, is lost."""
        if why:
            return replace(self, lost=self.lost + self.trying, trying=0, why=why)
        return replace(self, taken=self.taken + self.trying, trying=0)


def position_file(folder: RunFolder, tracker: str) -> Path:
    """Where it is written down how far a tracker has got."""
    return folder.path / "trackers" / f"{tracker}.json"


def read_position(path: Path) -> Position:
    """What is written down; the beginning where nothing is. Raises InputError for damage."""
    try:
        raw = json.loads(read_text(path))
        known = {name: type(value)(raw[name]) for name, value in asdict(Position()).items()}
    except FileNotFoundError:
        return Position()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged: {type(error).__name__}: {error}; put the original back, or remove "
            "it to log the run from its first step again"
        ) from error
    return Position(**known)


def write_position(path: Path, position: Position) -> None:
    """Write it down, whole. Raises BooksUnwritable."""
    write_file(path, json.dumps(asdict(position)) + "\n")


def next_batch(folder: RunFolder, position: Position) -> tuple[list[Point], Position]:
    """The points that come next, and the position behind them, where they are being tried. A line
    that is no record is passed over. Raises InputError where a file cannot be read."""
    points: list[Point] = []
    read = {}
    for name, path, of_line in (
        ("events", folder.events / "launcher.jsonl", _event),
        ("metrics", folder.metrics, _measured),
    ):
        data = _whole_lines(path, getattr(position, name))
        read[name] = getattr(position, name) + len(data)
        for line in data.decode("utf-8", errors="replace").splitlines():
            try:
                points += of_line(line)
            except InputError:  # the rest of a line whose writer was killed
                continue
    return points, replace(position, **read, trying=len(points))


def waiting(folder: RunFolder, position: Position) -> int:
    """How many points are behind this position. Raises InputError where a file cannot be read."""
    found = 0
    while True:
        points, later = next_batch(folder, position)
        if (later.metrics, later.events) == (position.metrics, position.events):
            return found
        found, position = found + len(points), later


def _whole_lines(path: Path, begin: int) -> bytes:
    """The whole lines from this byte on, about `AT_ONCE_BYTES` of them."""
    try:
        with open_named(path) as file:
            file.seek(begin)
            data = file.read(AT_ONCE_BYTES)
            while b"\n" not in data and (more := file.read(AT_ONCE_BYTES)):
                data += more
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; see to its disk") from error
    return data[: data.rfind(b"\n") + 1]


def _measured(line: str) -> Iterator[Point]:
    if not line.strip():
        return
    record = measured(line)
    if not isinstance(record, MetricRecord):
        values = {"eval/loss": record.loss, "eval/seconds": record.seconds}
        values |= {f"eval/{name}": value for name, value in record.metrics.items()}
        yield Point(step=record.step, at_s=record.at_s, values=values)
        return
    values = {"train/loss": record.loss, "run/usd": record.usd}
    values |= {f"train/{name}": value for name, value in record.metrics.items()}
    rates = {
        "run/samples_per_s": record.samples_per_s,
        "run/samples_per_usd": record.samples_per_usd,
        "run/tokens_per_s": record.tokens_per_s,
        "run/nodes": record.nodes,
    }
    values |= {name: float(value) for name, value in rates.items() if value}
    yield Point(step=record.step + 1, at_s=record.at_s or 0.0, values=values)


def _event(line: str) -> Iterator[Point]:
    if not line.strip():
        return
    event = EventRecord.from_json(line)
    if event.kind in EVENTS and (reason := str(event.data.get("reason", ""))):
        yield Point(step=event.step or 0, at_s=event.t_s, text=f"{event.kind}: {reason}")


def job_values(job: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A job's tables as `section.key` -> value; a list is JSON."""
    found: dict[str, Any] = {}
    for key, value in job.items():
        if isinstance(value, Mapping):
            found |= job_values(value, f"{before}{key}.")
        else:
            plain = isinstance(value, bool | int | float | str)
            found[f"{before}{key}"] = value if plain else json.dumps(value)
    return found
