"""A run's JSON files as values. An error about a damaged file names the file and a remedy.

Rule: a document gives each field in the right kind or raises InputError, so no reader of a run's
files needs a `try` of its own. `run_folder.RunFolder.read_json` leads to all of this.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo.errors import InputError
from bamboo.named_files import LONGEST, read_own

SCHEMA_VERSION = 1
REMEDY = "put the original back, or move the folder of this run elsewhere"
LATEST_S = 253_402_300_799
"""The end of the year 9999; later times have no date."""
_LARGEST = 1e300


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
        "zones": _OBJECT,
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
        **dict.fromkeys(("run", "sentence", "final_note", "status.run", "status.phase"), _TEXT),
        **dict.fromkeys(("exit_code", "parts", "step", "steps", "tokens"), _COUNT),
        **dict.fromkeys(("started_s", "ended_s"), _MOMENT),
        **dict.fromkeys(
            ("wall_s", "tokens_per_s", "tokens_per_usd", "samples_per_s", "samples_per_usd"),
            _NUMBER,
        ),
        **dict.fromkeys(
            ("first_loss", "last_loss", "mean_loss_of_last_10", "unigram_entropy_nats"), _LOSS
        ),
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
        **dict.fromkeys(("status.tokens_per_s", "status.usd", "status.tokens_per_usd"), _NUMBER),
        "status.loss": _LOSS,
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
        fields = {
            key: _checked(field, _below(name, key), path=path, kinds=kinds)
            for key, field in value.items()
        }
        return Document(fields, path=path, name=name)
    return value


def _below(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
