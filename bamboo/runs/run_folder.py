"""Where runs are on disk, how a person names one, and what its files say, each as a value.

Rules: the folder is the claim on the id. It is made with one `mkdir`, which succeeds only once, so
two launches with one id cannot both begin. A person names a run by its id, a unique prefix, or
`last`.

A document gives each field in the right kind or raises InputError, which names the file and a
remedy, so no reader of a run's files needs a `try` of its own.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bamboo.config.catalogue import installed_catalogue, read_catalogue
from bamboo.config.home import home as home_folder
from bamboo.config.load import job_from_json
from bamboo.config.resolve import kept_in
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError, RunExists
from bamboo.ids import NEWEST, RunId, run_id
from bamboo.jsonl import unwritable
from bamboo.named_files import LONGEST, read_own
from bamboo.new_files import write_whole
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.user_code.bundle import CODE_FOLDER

SCHEMA_VERSION = 1
REMEDY = "put the original back, or move the folder of this run elsewhere"
CHECKS = "checks"
LATEST_S = 253_402_300_799
"""The end of the year 9999; later times have no date."""
_LARGEST = 1e300
STARTING_S = 60.0
"""Within so long after its launch a run has a store and a cloud, or has ended."""
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"


# ---------------------------------------------------------------------- documents


class Document(dict[str, Any]):
    """An object in a JSON file. Reading a field that it lacks raises InputError."""

    def __init__(self, fields: Mapping[str, Any], *, path: Path, name: str) -> None:
        super().__init__(fields)
        self._path = path
        self._name = name

    def __missing__(self, key: str) -> Any:
        raise InputError(f"{self._path} is damaged: it lacks {_below(self._name, key)}; {REMEDY}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The kind of a field's value."""

    words: str
    holds: Callable[[Any], bool]


_TEXT = Kind(words="a text", holds=lambda value: isinstance(value, str))
_LIST = Kind(words="a list", holds=lambda value: isinstance(value, list))
_OBJECT = Kind(words="an object", holds=lambda value: isinstance(value, dict))
_COUNT = Kind(
    words="a whole number, at least 0",
    holds=lambda value: isinstance(value, int) and 0 <= value < _LARGEST,
)
_NUMBER = Kind(
    words="a number",
    holds=lambda value: isinstance(value, int | float) and abs(value) < _LARGEST,
)
_FLOAT = Kind(words="a number", holds=lambda value: isinstance(value, int | float))
"""Which may be infinite, or none at all."""
_LOSS = Kind(
    words="a number or null", holds=lambda value: value is None or isinstance(value, int | float)
)
_MAYBE = Kind(
    words="an object or null", holds=lambda value: value is None or isinstance(value, dict)
)
_MOMENT = Kind(
    words="seconds since 1970, before the year 10000",
    holds=lambda value: isinstance(value, int | float) and 0 <= value <= LATEST_S,
)

KINDS: Mapping[str, Mapping[str, Kind]] = {
    "resolved.json": {
        "started_s": _MOMENT,
        "part": _COUNT,
        "part_started_s": _MOMENT,
        "led_before_s": _NUMBER,
        "job": _OBJECT,
        **dict.fromkeys(("frame_bytes", "from_step", "layers[]", "older[]", "cuts[][]"), _COUNT),
        **dict.fromkeys(("layers", "older", "cuts", "cuts[]", "grids"), _LIST),
        "grids[]": _OBJECT,
        **dict.fromkeys((f"grids[].{name}" for name in ("pipelines", "stages")), _COUNT),
        "grids[].step_s": _NUMBER,
        **dict.fromkeys(("zones", "saving"), _OBJECT),
        "saving.recompute": _TEXT,
        "saving.replica_moments": _TEXT,
        "spread": _TEXT,
        **dict.fromkeys(("planned", "trace"), _MAYBE),
        **dict.fromkeys(("planned.step_s", "crossing_bytes", "unigram_entropy_nats"), _LOSS),
        "layer_bytes": _LIST,
        "layer_bytes[]": _COUNT,
        "store_bytes_per_s": _NUMBER,
    },
    "endpoint.json": {
        "store_url": _TEXT,
        "cloud": _OBJECT,
        "cloud.pid": _COUNT,
        **dict.fromkeys(
            (f"cloud.{name}" for name in ("endpoint_url", "store_url", "control_path")), _TEXT
        ),
        "cloud.socket_dir": _TEXT,
    },
    "receipt.json": {
        **dict.fromkeys(("run", "sentence", "final_note"), _TEXT),
        **dict.fromkeys(("status.run", "status.phase", "status.sentence"), _TEXT),
        **dict.fromkeys(("exit_code", "parts", "step", "steps"), _COUNT),
        **dict.fromkeys(("started_s", "ended_s"), _MOMENT),
        **dict.fromkeys(
            ("wall_s", "samples_per_s", "samples_per_usd"),
            _NUMBER,
        ),
        **dict.fromkeys(
            (
                *("first_loss", "last_loss", "mean_loss_of_last_10", "unigram_entropy_nats"),
                *("tokens", "tokens_per_s", "tokens_per_usd", "status.tokens_per_s"),
                *("status.tokens_per_usd", "status.loss"),
            ),
            _LOSS,
        ),
        **dict.fromkeys(("unit", "status.unit"), _TEXT),
        **dict.fromkeys(("last_metrics", "status.metrics"), _OBJECT),
        **dict.fromkeys(("last_metrics{}", "status.metrics{}"), _FLOAT),
        "status.evaluation": _MAYBE,
        "status.evaluation.step": _COUNT,
        "status.evaluation.loss": _FLOAT,
        "status.evaluation.metrics": _OBJECT,
        "status.evaluation.metrics{}": _FLOAT,
        **dict.fromkeys(("preemptions", "reconfigurations", "nodes", "bill.instances"), _LIST),
        **dict.fromkeys(("preemptions[]", "reconfigurations[]", "bill", "status"), _OBJECT),
        **dict.fromkeys(("bill.usd", "bill.on_demand_usd", "bill.instance_seconds"), _NUMBER),
        **dict.fromkeys(("bill.beside.usd", "bill.beside.micro_usd", "bill.whole_usd"), _NUMBER),
        "bill.instances[]": _OBJECT,
        **dict.fromkeys(
            (
                f"bill.instances[].{name}"
                for name in ("instance", "instance_type", "zone", "market")
            ),
            _TEXT,
        ),
        **dict.fromkeys(
            (f"bill.instances[].{name}" for name in ("seconds", "billed_s", "usd_per_hour", "usd")),
            _NUMBER,
        ),
        **dict.fromkeys(
            (f"reconfigurations[].{name}" for name in ("step", "steps_again", "sent_bytes")), _COUNT
        ),
        "reconfigurations[].took_s": _NUMBER,
        "segments": _LIST,
        "segments[]": _OBJECT,
        **dict.fromkeys(("segments[].from_step", "segments[].to_step"), _COUNT),
        "segments[].semantic_hash": _TEXT,
        "trace": _MAYBE,
        "trace.name": _TEXT,
        **dict.fromkeys(("trace.played_s", "trace.time_scale", "trace.length_s"), _NUMBER),
        **dict.fromkeys(("trace.max_nodes", "trace.preemptions"), _COUNT),
        **dict.fromkeys(("status.step", "status.steps"), _COUNT),
        **dict.fromkeys(
            (f"status.{name}" for name in ("usd", "samples_per_s", "samples_per_usd")), _NUMBER
        ),
        "status.nodes": _LIST,
        **{
            f"{nodes}{field}": kind
            for nodes in ("nodes[]", "status.nodes[]")
            for field, kind in {
                "": _OBJECT,
                ".id": _TEXT,
                ".zone": _TEXT,
                ".status": _TEXT,
                ".owns": _LIST,
                ".owns[]": _TEXT,
                ".shadows": _LIST,
                ".shadows[]": _TEXT,
                ".operations": _OBJECT,
                ".tensor_bytes": _COUNT,
                ".overruns": _COUNT,
            }.items()
        },
    },
}
"""File name -> field -> its kind if it exists. `a.b` is a field of `a`, `a[]` an item of a list."""


def read_document(path: Path) -> Document:
    """The object in this file. Raises FileNotFoundError, and InputError for any damage."""
    try:
        return _document(json.loads(read_text(path, most=LONGEST)), path)
    except (ValueError, RecursionError) as error:
        # This also covers an integer of thousands of digits and a list nested that deep.
        raise InputError(f"{path} is not JSON: {error}; {REMEDY}") from error


def _document(raw: Any, path: Path) -> Document:
    if not isinstance(raw, dict) or raw.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{path} is not of schema {SCHEMA_VERSION}; use the version of bamboo that wrote it, "
            f"or {REMEDY}"
        )
    document = _checked(raw, "", path=path, kinds=KINDS.get(path.name, {}))
    assert isinstance(document, Document), "an object becomes a document"
    return document


def read_text(path: Path, *, most: int | None = None) -> str:
    """The text of this file. Raises FileNotFoundError, InputError for any damage, and ValueError
    for a text of `most` characters or more."""
    try:
        return read_own(path, most=most)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; {REMEDY}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text: {error}; {REMEDY}") from error


def _checked(value: Any, name: str, *, path: Path, kinds: Mapping[str, Kind]) -> Any:
    """The value, with each object in it as a Document. Raises InputError for a wrong kind."""
    kind = kinds.get(name)
    if kind is not None and not kind.holds(value):
        shown = json.dumps(value)
        shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
        raise InputError(f"{path} is damaged: {name} = {shown} is not {kind.words}; {REMEDY}")
    if isinstance(value, list):
        return [_checked(one, f"{name}[]", path=path, kinds=kinds) for one in value]
    if isinstance(value, dict):
        alike = f"{name}{{}}"  # of an object whose keys are not ours
        fields = {
            key: _checked(
                field, alike if alike in kinds else _below(name, key), path=path, kinds=kinds
            )
            for key, field in value.items()
        }
        return Document(fields, path=path, name=name)
    return value


def _below(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


# ---------------------------------------------------------------------- the folder


def home() -> Path:
    """`$BAMBOO_HOME`, by default `./runs`."""
    return home_folder()


def fresh_id(job: Path, *, now: datetime, chance: random.Random) -> RunId:
    """A readable id: the job file's name, month-day-hour-minute, two random characters."""
    stem = "".join(c if c.isascii() and c.isalnum() else "-" for c in job.stem.lower())
    stem = "-".join(part for part in stem.split("-") if part)[:40] or "run"
    tail = "".join(chance.choice(_LETTERS) for _ in range(2))
    return run_id(f"{stem}-{now:%m%d-%H%M}-{tail}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The files of one run."""

    id: RunId
    path: Path

    @property
    def job(self) -> Path:
        return self.path / "job.toml"

    @property
    def newest_sync(self) -> Path:
        return self.path / "sync.json"

    @property
    def resolved(self) -> Path:
        return self.path / "resolved.json"

    @property
    def strategy(self) -> Path:
        return self.path / "strategy.json"

    @property
    def prices(self) -> Path:
        """The catalogue that the run was planned with; it counts the dollars to the end."""
        return self.path / "prices.json"

    @property
    def trace(self) -> Path:
        """The run's own copy of the trace that it is played on, if any."""
        return self.path / "trace"

    @property
    def code(self) -> Path:
        """The run's own copy of the user's code, as an absolute path; none for the built-in
        model."""
        return self.path.absolute() / CODE_FOLDER

    @property
    def tokenizer(self) -> Path:
        """The run's own copy of the tokenizer that made its tokens, if its job names one."""
        return self.path / "tokenizer.json"

    @property
    def endpoint(self) -> Path:
        """How to reach the run while it lives; readable by its owner only."""
        return self.path / "endpoint.json"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """The samples of each committed step, as reported by the node that took it."""
        return self.path / "samples.jsonl"

    @property
    def decisions(self) -> Path:
        return self.path / "decisions.jsonl"

    @property
    def cloud(self) -> Path:
        """What the cloud did, as it would bill it: one line per start or end of an instance."""
        return self.path / "cloud.jsonl"

    @property
    def kills(self) -> Path:
        """A stamp from just before each kill, written by the killer."""
        return self.path / "kills.jsonl"

    @property
    def final(self) -> Path:
        return self.path / "final"

    @property
    def final_manifest(self) -> Path:
        """What the final state consists of; exists only after an end in order."""
        return self.final / "manifest.json"

    @property
    def receipt(self) -> Path:
        return self.path / "receipt.json"

    def read_json(self, path: Path) -> Document:
        """A JSON file of this run. Raises InputError when it is missing, damaged or of another
        schema, and whenever a field that it lacks is read."""
        with self._missing(path):
            return read_document(path)

    def read_text(self, path: Path) -> str:
        """A text file of this run. Raises InputError when it is missing or damaged."""
        with self._missing(path):
            return read_text(path)

    @contextmanager
    def _missing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise InputError(f"run {self.id} has no {path.name} (looked at {path})") from error

    def starting(self) -> bool:
        """Whether it was launched or resumed a moment ago and cannot be reached yet."""
        young = time.time() - part_of(self).started_s < STARTING_S
        return young and not self.endpoint.exists() and not self.receipt.exists()

    def live_endpoint(self) -> Document | None:
        """The content of endpoint.json, or None when the run has ended or never started."""
        return self.read_json(self.endpoint) if self.endpoint.exists() else None


def create(base: Path, run: RunId) -> RunFolder:
    """Claim the id by making its folder. Raises RunExists when the id is taken."""
    path = base / run
    try:
        base.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=False)
    except OSError as error:
        if isinstance(error, FileExistsError) and base.is_dir():
            raise RunExists(
                f"run {run} exists already in {base}; take another --run id, or leave it out"
            ) from error
        raise InputError(
            f"cannot make {path}: {error.strerror}; set BAMBOO_HOME to a folder you may write"
        ) from error
    return RunFolder(id=run, path=path)


def find(base: Path, text: str) -> RunFolder:
    """The run that a person means. Raises InputError when there is none, or several.

    An id is found by its folder alone, so another damaged run does no harm.
    """
    there = _folders(base)
    laid = {folder.id: uid for folder in there if (uid := _stranger(base, folder))}
    if text in laid:
        raise InputError(
            f"run {text} in {base} belongs to another user (uid {laid[RunId(text)]}), whose code "
            "it has; ask as that user, or set BAMBOO_HOME to a folder of your own"
        )
    folders = [folder for folder in there if folder.id not in laid]
    if not folders:
        raise InputError(
            f"unknown run {text!r}: there are no runs in {base}; set BAMBOO_HOME to where they are"
        )
    if text == NEWEST and (there := _oldest_first(folders)):
        return there[-1]
    exact = [f for f in folders if f.id == text]
    matches = exact or [f for f in folders if text and f.id.startswith(text)]
    if not matches:
        raise InputError(f"unknown run {text!r} in {base}; `bamboo list` shows what is there")
    if len(matches) > 1:
        names = ", ".join(sorted(f.id for f in matches)[:4])
        raise InputError(f"run {text!r} is not unique: {names}; give more of the id")
    return matches[0]


def checks_of(folder: RunFolder) -> list[RunFolder]:
    """The checks of a run's bits on rented machines, each with an id and a folder of its own."""
    there = sorted((folder.path / CHECKS).glob("*/"))
    return [RunFolder(id=RunId(path.name), path=path) for path in there]


def all_runs(base: Path) -> list[RunFolder]:
    """Every run of this home, oldest first. A folder without resolved.json is not a run."""
    return _oldest_first(_folders(base))


def own_runs(base: Path) -> list[RunFolder]:
    """As `all_runs`, without those that another user put there."""
    return [folder for folder in all_runs(base) if not _stranger(base, folder)]


def own_folders(base: Path) -> list[RunFolder]:
    """As `own_runs`, in no order, since none is read."""
    return [folder for folder in _folders(base) if not _stranger(base, folder)]


def _oldest_first(folders: Sequence[RunFolder]) -> list[RunFolder]:
    """The ones that still exist."""
    timed = [
        (at_s, folder.id, folder) for folder in folders if (at_s := _order_s(folder)) is not None
    ]
    return [folder for _, _, folder in sorted(timed, key=lambda one: one[:2])]


def _stranger(base: Path, folder: RunFolder) -> int:
    """The other user who put a run into a home that others may write to; 0: the run belongs to the
    user, or to the owner of the home or of the machine."""
    trusted = {0, os.geteuid(), base.stat().st_uid}
    try:
        owners = (folder.path.lstat().st_uid, folder.path.stat().st_uid)
    except FileNotFoundError:  # it has just been deleted
        return 0
    return next((uid for uid in owners if uid not in trusted), 0)


def _folders(base: Path) -> list[RunFolder]:
    return [
        RunFolder(id=RunId(resolved.parent.name), path=resolved.parent)
        for resolved in base.glob("*/resolved.json")
    ]


def _order_s(folder: RunFolder) -> float | None:
    """The time of the launch. For a damaged run it is the latest possible, so that `last` never
    means an older run by mistake; None: it has just been removed."""
    try:
        return started_at_s(folder)
    except InputError:
        try:
            return folder.resolved.lstat().st_mtime
        except FileNotFoundError:
            return None


# ---------------------------------------------------------------------- what its files say


def is_detached(folder: RunFolder) -> bool:
    """Whether the run was launched with --detach, so that it goes on without a launcher."""
    return bool(folder.read_json(folder.resolved).get("detached", False))


def started_at_s(folder: RunFolder) -> float:
    """Unix time of the launch."""
    return float(folder.read_json(folder.resolved)["started_s"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A run from one start to one end. Each `bamboo resume` begins another part."""

    number: int
    """The first is 1."""
    started_s: float
    """Unix time."""
    led_before_s: float = 0.0
    """How long the parts before it lasted, all together."""


def part_of(folder: RunFolder) -> Part:
    """The newest part of a run."""
    body = folder.read_json(folder.resolved)
    return Part(
        number=int(body.get("part", 1)),
        started_s=float(body.get("part_started_s", body["started_s"])),
        led_before_s=float(body.get("led_before_s", 0.0)),
    )


def parts_before(folder: RunFolder) -> dict[int, RunFolder]:
    """Number -> the files of each part before the newest, in order."""
    parts = folder.path / "parts"
    numbers = sorted(int(path.name) for path in parts.glob("*") if path.name.isdecimal())
    return {n: RunFolder(id=folder.id, path=parts / str(n)) for n in numbers}


def started_text(folder: RunFolder) -> str:
    """The launch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(started_at_s(folder), UTC).isoformat(timespec="seconds")


def job_of(folder: RunFolder) -> JobConfig:
    """The resolved job of a run."""
    body = folder.read_json(folder.resolved)
    job = job_from_json(json.dumps(body), name=str(folder.resolved))
    return kept_in(folder.path, job)


def catalogue_of(folder: RunFolder) -> Catalogue:
    """The catalogue that a run was planned with; for an older run the installed one. Raises
    InputError when its file is damaged."""
    return read_catalogue(folder.prices, remedy=REMEDY) or installed_catalogue()


def promised(folder: RunFolder) -> Mapping[str, Any] | None:
    """What the newest plan of a run promised; None in runs from before it was kept."""
    body: Mapping[str, Any] = folder.read_json(folder.resolved)
    return body.get("planned")


def write_json(path: Path, body: Mapping[str, Any]) -> None:
    """Write a whole JSON file or nothing: under another name first, then renamed. Only its owner
    can read it, from the first byte on."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **body}, indent=2) + "\n"
    write_file(path, text)


def write_file(path: Path, text: str) -> None:
    """As `write_json`, for any text. Raises BooksUnwritable."""
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise unwritable(path, error) from error
