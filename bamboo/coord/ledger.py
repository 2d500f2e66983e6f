"""The run's ledger, on the store's `ledger` stream: prices, duties and work of the instances,
throughput and value, as they develop.

Rule: plain JSON, one record per line, each with its kind and the Unix time at which it was true;
money is in US dollars. The planner's value and cost define the numbers; this file only stores them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from bamboo.coord.shapes import shape_of
from bamboo.errors import UnreadableRecord
from bamboo.ids import InstanceId, ZoneId
from bamboo.planner.attribution import Work
from bamboo.planner.duties import DutyChange
from bamboo.planner.fleet.autoscale import Resize
from bamboo.ports import Store
from bamboo.price_check import BadPrice, checked_usd
from bamboo.topology.strategy import canonical_json

STREAM = "ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRecord:
    """The price of an instance from `at_s` on; with `until_s`, the time at which costs ended."""

    at_s: float
    instance: InstanceId
    instance_type: str
    zone: ZoneId
    market: str
    """`spot` or `on-demand`."""
    usd_per_hour: float
    on_demand_usd_per_hour: float
    """Price of the same type and region, for comparison in the receipt."""
    until_s: float | None = None
    interrupted: bool = False
    """Whether the cloud ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRecord:
    """What the run computed up to `at_s`."""

    at_s: float
    step: int
    samples: int
    """Samples since the start of the run."""
    tokens: int
    samples_per_s: float
    """Rate since the previous record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRecord:
    """Performance per dollar up to `at_s`, over the whole run."""

    at_s: float
    step: int
    usd: float
    on_demand_usd: float
    samples_per_usd: float
    tokens_per_usd: float


LedgerRecord: TypeAlias = PriceRecord | ThroughputRecord | ValueRecord | DutyChange | Work | Resize
_KINDS: dict[str, Any] = {
    "price": PriceRecord,
    "throughput": ThroughputRecord,
    "value": ValueRecord,
    "duty": DutyChange,
    "work": Work,
    "resize": Resize,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def record_body(record: LedgerRecord) -> dict[str, Any]:
    """The record as JSON: `{"kind": "price", …}`."""
    name = _NAMES[type(record)]
    return {"kind": name, **shape_of(_KINDS[name]).write(record)}


def record_of(body: Mapping[str, Any]) -> LedgerRecord:
    """The inverse of `record_body`. Raises UnreadableRecord."""
    raw = dict(body)
    name = raw.pop("kind", None)
    if not isinstance(name, str) or name not in _KINDS:
        raise UnreadableRecord(f"a ledger record has the unknown kind {name!r}")
    record: LedgerRecord = shape_of(_KINDS[name]).read(raw, name)
    if isinstance(record, PriceRecord):
        try:
            for usd in (record.usd_per_hour, record.on_demand_usd_per_hour):
                checked_usd(usd)
        except BadPrice as error:
            raise UnreadableRecord(f"a price of {record.instance}: {error}") from error
    return record


def encode_record(record: LedgerRecord) -> str:
    """The `record_body` as canonical JSON."""
    return canonical_json(record_body(record))


def decode_record(text: str) -> LedgerRecord:
    """Read what `encode_record` wrote. Raises UnreadableRecord."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(f"a ledger record is not JSON: {error}") from error
    return record_of(raw if isinstance(raw, dict) else {})


def append_record(store: Store, record: LedgerRecord) -> str:
    """Append a record; returns its id. Raises StoreUnavailable."""
    return store.append(STREAM, encode_record(record))


def read_ledger(
    store: Store, *, after_id: str = "0", timeout_s: float = 0.0
) -> Sequence[tuple[str, LedgerRecord]]:
    """Records after an id, in order, as (id, record). Waits up to `timeout_s` for the first.

    One call returns a bounded number; call again with the last id until none comes. Raises
    StoreUnavailable, UnreadableRecord.
    """
    found = store.records(STREAM, after_id=after_id, timeout_s=timeout_s)
    return [(at, decode_record(text)) for at, text in found]
