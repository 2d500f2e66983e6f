"""What members write into a run's store besides its decisions, as values: metrics, beats, the
ledger.

Rule: a damaged or foreign document is skipped and noted, once for each kind. It neither ends a run
nor hides the other documents.
"""

import json
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, TypeVar

from bamboo.coord.codec import LedgerRecord, decode_record
from bamboo.errors import UnreadableRecord
from bamboo.runs.pause import pause_parts_s
from bamboo.telemetry.records import EvaluationRecord
from bamboo.telemetry.samples import SamplesRecord

_DAMAGE = (KeyError, TypeError, ValueError, OverflowError, RecursionError)
_SHOWN = 80

T = TypeVar("T")


def metric_of(text: str) -> Mapping[str, Any]:
    """A record of the metrics stream; a kind of a later version is passed on unchecked. Raises
    UnreadableRecord."""
    try:
        record = _object(text)
        match record.get("kind"):
            case "step":
                _count(record["step"])
                float(record["loss"])
                _figure(record["t_s"])
                if "used" in record:
                    SamplesRecord.of_step(record["step"], record["used"])
                _count(record.get("count", 0))
                _text(record.get("unit", ""))
                for value in _mapping(record.get("metrics", {})).values():
                    float(value)
            case "evaluation":
                EvaluationRecord.of(record, time="t_s")
            case "density":
                _count(record["step"])
                for share in _mapping(record["density"]).values():
                    _figure(share)
            case "failover":
                pause_parts_s(record)
            case "memory":
                _text(record["node"])
                _work(record)
                _count(record["peak_tensor_bytes"])
                for busy_s in _mapping(record.get("busy_s", {})).values():
                    _figure(busy_s)
    except _DAMAGE as error:
        raise _unreadable("a metric", text, error) from error
    return record


def beat_of(text: str) -> Mapping[str, Any]:
    """The payload of a lease. Raises UnreadableRecord."""
    try:
        beat = _object(text)
        _work(beat)
        for name in ("step", "tensor_bytes"):
            _count(beat.get(name, 0))
        if "busy_s" in beat:
            _figure(beat["busy_s"])
            _count(beat["ops"]["F"])
    except _DAMAGE as error:
        raise _unreadable("a beat", text, error) from error
    return beat


class Hearing:
    """Reads records, and calls `note` for what cannot be read, for which it returns None."""

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self._note = note
        self._noted: set[str] = set()

    def metric(self, text: str) -> Mapping[str, Any] | None:
        return self._read("metrics", metric_of, text)

    def beat(self, text: str) -> Mapping[str, Any] | None:
        return self._read("beats", beat_of, text)

    def ledger(self, text: str) -> LedgerRecord | None:
        return self._read("ledger", decode_record, text)

    def _read(self, kind: str, read: Callable[[str], T], text: str) -> T | None:
        try:
            return read(text)
        except UnreadableRecord as error:
            if kind not in self._noted:
                self._noted.add(kind)
                self._note(f"passed over in the store's {kind}, and all like it: {error}")
            return None


def _work(said: Mapping[str, Any]) -> None:
    for counted in _mapping(said.get("ops", {})).values():
        _count(counted)
    _count(said.get("overruns", 0))


def _object(text: str) -> Mapping[str, Any]:
    return _mapping(json.loads(text))


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:_SHOWN]!r} is no object")
    return value


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")


def _count(value: Any) -> None:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:_SHOWN]!r} is no whole number")


def _figure(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{str(value)[:_SHOWN]!r} is no number")


def _unreadable(what: str, text: str, error: Exception) -> UnreadableRecord:
    return UnreadableRecord(f"{what} lacks or garbles {error}: {text[:_SHOWN]!r}")
