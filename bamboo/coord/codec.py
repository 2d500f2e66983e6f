"""The text form of everything that a run keeps in its store: canonical JSON with a version.

Rule: no pickle; equal values give equal text, so a hash of the text is a hash of the value. A
document of another version, or an unknown kind of event or effect, is refused by name, never
guessed at. Changing the fields of anything below means raising SCHEMA_VERSION.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from bamboo.coord.shapes import shape_of
from bamboo.core.effects import Effect
from bamboo.core.events import Event
from bamboo.core.state import Policy, State
from bamboo.errors import UnreadableRecord
from bamboo.topology.strategy import canonical_json

SCHEMA_VERSION = 12

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
