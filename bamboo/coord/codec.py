"""The text form of everything that a run keeps in its store: state, log and ledger, as JSON.

Rules: no pickle; equal values give equal text, so a hash of the text is a hash of the value. The
state and the log carry a version, and a document of another version, or an unknown kind of event or
effect, is refused by name, never guessed at. Changing their fields means raising SCHEMA_VERSION.

The ledger (stream `ledger`: prices, duties and work of the instances, throughput and value, as they
develop) has one record per line, each with its kind and the Unix time at which it was true; money
is in US dollars. The planner's value and cost define the numbers.
"""

import dataclasses
import hashlib
import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import (
    Any,
    Literal,
    NamedTuple,
    NewType,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from bamboo.core.effects import Effect
from bamboo.core.events import Event
from bamboo.core.state import Policy, State
from bamboo.errors import CoreMisuse, UnreadableRecord
from bamboo.ids import InstanceId, ZoneId
from bamboo.planner.attribution import Work
from bamboo.planner.duties import DutyChange
from bamboo.planner.fleet.autoscale import Resize
from bamboo.ports import Store
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import canonical_json
from bamboo.value import BadPrice, checked_usd

SCHEMA_VERSION = 15
STREAM = "ledger"


# ---------------------------------------------------------------------- any value, by its type


class Shape(NamedTuple):
    """How one type is written and read; `read` receives the place for its error messages."""

    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]


@cache
def shape_of(kind: Any) -> Shape:
    """The shape of a type, from its declared fields. It is strict both ways: a missing field, an
    unknown field or a value of another type is an error that names its place. An int in a float
    field becomes a float, so that equal values give equal text.

    Raises TypeError for any type but text, numbers, booleans, None, enumerations of text, slots (as
    `0.2`), tuples and dataclasses of these."""
    if isinstance(kind, NewType):
        return shape_of(kind.__supertype__)
    if kind is float:
        return Shape(float, _read_float)
    if kind in (str, int, bool, types.NoneType):
        return Shape(lambda value: value, lambda raw, at: _read_plain(kind, raw, at))
    if kind is Slot:
        return Shape(str, _read_slot)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return Shape(lambda value: value.value, lambda raw, at: _read_choice(kind, raw, at))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_shape(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return Shape(lambda value: value, lambda raw, at: _read_literal(arguments, raw, at))
    if origin is tuple:
        return _tuple_shape(arguments)
    if origin in (Union, types.UnionType) and types.NoneType in arguments and len(arguments) == 2:
        inner = shape_of(next(a for a in arguments if a is not types.NoneType))
        return Shape(
            lambda value: None if value is None else inner.write(value),
            lambda raw, at: None if raw is None else inner.read(raw, at),
        )
    raise TypeError(f"{kind} has no form in a document")


def _dataclass_shape(kind: type) -> Shape:
    hints = get_type_hints(kind)
    # A field that is not an argument follows from the others, and is no part of a document.
    given = [field.name for field in dataclasses.fields(kind) if field.init]
    fields = {name: shape_of(hints[name]) for name in given}

    def write(value: Any) -> dict[str, Any]:
        return {name: shape.write(getattr(value, name)) for name, shape in fields.items()}

    def read(raw: Any, at: str) -> Any:
        if not isinstance(raw, dict):
            raise UnreadableRecord(f"{at} is {raw!r}, not a {kind.__name__}")
        if raw.keys() != fields.keys():
            odd = ", ".join(sorted(raw.keys() ^ fields.keys()))
            raise UnreadableRecord(f"{at}: the fields {odd} of {kind.__name__} do not fit")
        try:
            return kind(**{n: shape.read(raw[n], f"{at}.{n}") for n, shape in fields.items()})
        except (ValueError, CoreMisuse) as error:
            # A value that its own rules refuse: here the document is wrong, not a driver.
            raise UnreadableRecord(f"{at} is no {kind.__name__}: {error}") from error

    return Shape(write, read)


def _tuple_shape(arguments: tuple[Any, ...]) -> Shape:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = shape_of(arguments[0])

        def read_all(raw: Any, at: str) -> tuple[Any, ...]:
            return tuple(item.read(r, f"{at}[{i}]") for i, r in enumerate(_list(raw, at)))

        return Shape(lambda value: [item.write(v) for v in value], read_all)
    items = [shape_of(argument) for argument in arguments]

    def read_each(raw: Any, at: str) -> tuple[Any, ...]:
        values = _list(raw, at)
        if len(values) != len(items):
            raise UnreadableRecord(f"{at} has {len(values)} values, not {len(items)}")
        return tuple(
            item.read(r, f"{at}[{i}]")
            for i, (item, r) in enumerate(zip(items, values, strict=True))
        )

    return Shape(
        lambda value: [item.write(v) for item, v in zip(items, value, strict=True)], read_each
    )


def _list(raw: Any, at: str) -> list[Any]:
    if not isinstance(raw, list):
        raise UnreadableRecord(f"{at} is {raw!r}, not a list")
    return raw


def _read_float(raw: Any, at: str) -> float:
    try:
        if not isinstance(raw, bool) and isinstance(raw, int | float) and math.isfinite(raw):
            return float(raw)
    except OverflowError:
        pass  # a whole number too large for a float
    raise UnreadableRecord(f"{at} is {raw!r}, not a finite number")


def _read_plain(kind: type, raw: Any, at: str) -> Any:
    if type(raw) is not kind:
        raise UnreadableRecord(f"{at} is {raw!r}, not a value of type {kind.__name__}")
    return raw


def _read_slot(raw: Any, at: str) -> Slot:
    try:
        return Slot.parse(raw)
    except (ValueError, AttributeError) as error:
        raise UnreadableRecord(f"{at} is {raw!r}, not a slot such as 0.2") from error


def _read_choice(kind: type[StrEnum], raw: Any, at: str) -> StrEnum:
    try:
        return kind(raw)
    except ValueError as error:
        raise UnreadableRecord(f"{at} is {raw!r}, not one of {[k.value for k in kind]}") from error


def _read_literal(choices: tuple[Any, ...], raw: Any, at: str) -> Any:
    if raw not in choices:
        raise UnreadableRecord(f"{at} is {raw!r}, not one of {list(choices)}")
    return raw


# ---------------------------------------------------------------------- state and log


_EVENTS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Event)}
_EFFECTS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Effect)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The first log entry: everything from which the run can be recomputed."""

    state: State
    policy: Policy
    at_s: float
    """Unix time of the creator's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A log entry: the event, the time of its decision, and the result."""

    event: Event
    now_s: float
    """The store's time that `transition` received."""
    effects: tuple[Effect, ...]
    reason: str
    state_hash: str
    """Hash of the state after it."""
    author: str
    """The member that appended it."""
    token: str
    """Drawn by the author for this append, to recognise its own entry after a lost answer."""


def encode_state(state: State) -> str:
    """The state document."""
    return canonical_json({"v": SCHEMA_VERSION, "state": shape_of(State).write(state)})


def decode_state(text: str) -> State:
    """Read what `encode_state` wrote. Raises UnreadableRecord."""
    state: State = shape_of(State).read(_open(text, "the state", {"state"})["state"], "state")
    return state


def state_hash(state: State) -> str:
    """16 hex digits of SHA-256 over the state document."""
    return hashlib.sha256(encode_state(state).encode()).hexdigest()[:16]


def encode_event(event: Event) -> str:
    """One event as a document of its own."""
    return canonical_json({"v": SCHEMA_VERSION, "event": _tagged(event, _EVENTS)})


def decode_event(text: str) -> Event:
    """Read what `encode_event` wrote. Raises UnreadableRecord."""
    return _event(_open(text, "an event", {"event"})["event"])


def encode_effects(effects: Sequence[Effect]) -> str:
    """The effects of one transition as a document of its own."""
    body = [_tagged(effect, _EFFECTS) for effect in effects]
    return canonical_json({"v": SCHEMA_VERSION, "effects": body})


def decode_effects(text: str) -> tuple[Effect, ...]:
    """Read what `encode_effects` wrote. Raises UnreadableRecord."""
    return _effects(_open(text, "effects", {"effects"})["effects"])


def encode_entry(entry: Begin | Committed) -> str:
    """The body of a log entry."""
    if isinstance(entry, Begin):
        begin = shape_of(Begin).write(entry)
        return canonical_json({"v": SCHEMA_VERSION, "begin": begin})
    return canonical_json(
        {
            "v": SCHEMA_VERSION,
            "event": _tagged(entry.event, _EVENTS),
            "now_s": float(entry.now_s),
            "effects": [_tagged(effect, _EFFECTS) for effect in entry.effects],
            "reason": entry.reason,
            "state_hash": entry.state_hash,
            "author": entry.author,
            "token": entry.token,
        }
    )


def decode_entry(text: str) -> Begin | Committed:
    """Read what `encode_entry` wrote. Raises UnreadableRecord."""
    raw = _parse(text, "a log entry")
    if "begin" in raw:
        return _begin(raw["begin"])
    texts = ("reason", "state_hash", "author", "token")
    _expect_keys(raw, "a log entry", {"event", "now_s", "effects", *texts})
    plain = {name: shape_of(str).read(raw[name], name) for name in texts}
    return Committed(
        event=_event(raw["event"]),
        now_s=shape_of(float).read(raw["now_s"], "now_s"),
        effects=_effects(raw["effects"]),
        **plain,
    )


def _begin(raw: Any) -> Begin:
    begin: Begin = shape_of(Begin).read(raw, "begin")
    return begin


def _tagged(value: Any, kinds: dict[str, Any]) -> dict[str, Any]:
    kind = type(value)
    if kinds.get(kind.__name__) is not kind:
        raise TypeError(f"{value!r} is none of {', '.join(kinds)}")
    return {"kind": kind.__name__, **shape_of(kinds[kind.__name__]).write(value)}


def _untagged(raw: Any, kinds: dict[str, Any], what: str) -> Any:
    name = raw.get("kind") if isinstance(raw, dict) else None
    if not isinstance(name, str) or name not in kinds:
        raise UnreadableRecord(
            f"{what} has the unknown kind {name!r}; a newer program wrote it, use that one"
        )
    body = {key: value for key, value in raw.items() if key != "kind"}
    return shape_of(kinds[name]).read(body, name)


def _event(raw: Any) -> Event:
    event: Event = _untagged(raw, _EVENTS, "an event")
    return event


def _effects(raw: Any) -> tuple[Effect, ...]:
    if not isinstance(raw, list):
        raise UnreadableRecord(f"effects are {raw!r}, not a list")
    return tuple(_untagged(effect, _EFFECTS, "an effect") for effect in raw)


def _parse(text: str, what: str) -> dict[str, Any]:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(f"{what} is not JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("v") != SCHEMA_VERSION:
        version = raw.get("v") if isinstance(raw, dict) else None
        raise UnreadableRecord(
            f"{what} has schema version {version!r} and this program reads {SCHEMA_VERSION}; "
            "use the program that wrote it"
        )
    return raw


def _open(text: str, what: str, keys: set[str]) -> dict[str, Any]:
    raw = _parse(text, what)
    _expect_keys(raw, what, keys)
    return raw


def _expect_keys(raw: dict[str, Any], what: str, keys: set[str]) -> None:
    odd = raw.keys() ^ (keys | {"v"})
    if odd:
        raise UnreadableRecord(f"{what}: the fields {', '.join(sorted(odd))} do not fit")


# ---------------------------------------------------------------------- the ledger


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
    if name == "duty":
        raw.setdefault("evaluated", None)  # releases before evaluations wrote none
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
