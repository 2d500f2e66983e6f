"""How the members give a store that has lost the run its contents back.

Each member offers what it has read: the state of some version and the decisions since. The store
takes offers for one lease after the first one. Then the first member that has the run's documents
writes the highest version back, with one more decision, StoreRefilled, which begins a new
generation.

Rule: the refilled log is a log like any other. It begins with a later state than the run's first
one, everything after that can be recomputed, and a member that was a little behind reads on as if
nothing had happened. What only the store had (records, leases, decisions that no member had read)
is lost.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from bamboo.coord.codec import (
    Begin,
    Committed,
    decode_entry,
    decode_state,
    encode_entry,
    encode_state,
    state_hash,
)
from bamboo.coord.strategies import lacks
from bamboo.core.events import StoreRefilled
from bamboo.core.machine import transition
from bamboo.core.state import State
from bamboo.errors import UnreadableRecord
from bamboo.ports import Entry, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The end of a log: a state, the decisions since, and their result."""

    begin: Begin
    entries: tuple[Entry, ...]
    state: State


def encode_known(known: Known) -> str:
    """The text of an offer."""
    return json.dumps(
        {
            "begin": encode_entry(known.begin),
            "entries": [[entry.version, entry.body] for entry in known.entries],
            "state": encode_state(known.state),
        }
    )


def decode_known(text: str) -> Known:
    """Read what `encode_known` wrote. Raises UnreadableRecord."""
    try:
        raw = json.loads(text)
        begin = decode_entry(raw["begin"])
        entries = tuple(Entry(version=int(v), body=str(body)) for v, body in raw["entries"])
        state = decode_state(raw["state"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UnreadableRecord(f"an offer to refill the store is damaged: {error}") from error
    if not isinstance(begin, Begin):
        raise UnreadableRecord("an offer to refill the store has no state to begin with")
    return Known(begin=begin, entries=entries, state=state)


def offer_to(store: Store, known: Known, *, documents: Mapping[str, str] | None, me: str) -> bool:
    """Offer what is known to a store without the run, and write the best offer back once the time
    for offers is over; returns whether the run is there now. A member without the documents (None),
    or without a strategy that the best offer names, only offers. Raises StoreUnavailable. Call it
    again until it returns True."""
    lease_s, version = known.begin.policy.gone_s, known.state.version
    offers = store.offer(version=version, offer="", lease_s=lease_s)
    if not offers.here and offers.version < version:
        offers = store.offer(version=version, offer=encode_known(known), lease_s=lease_s)
    if offers.here or not offers.best or documents is None:
        return offers.here
    try:
        best = decode_known(offers.best)
    except UnreadableRecord:  # no member made that offer; our own knowledge is better than none
        best = known
    if lacks(documents, best.state):
        return False
    state, entries = with_refill(best, now_s=offers.now_s, me=me)
    store.refill(state=encode_state(state), entries=entries, documents=documents)
    return True


def with_refill(known: Known, *, now_s: float, me: str) -> tuple[State, tuple[Entry, ...]]:
    """The state and the log for the store: what is known, and an entry for the refill. A run that
    is over stays as it is."""
    begin = Entry(version=known.begin.state.version, body=encode_entry(known.begin))
    log = (begin, *known.entries)
    event = StoreRefilled(reporter=me)
    step = transition(known.state, event, now_s=now_s, policy=known.begin.policy)
    if step.state is known.state:
        return known.state, log
    entry = Committed(
        event=event,
        now_s=now_s,
        effects=step.effects,
        reason=step.reason,
        state_hash=state_hash(step.state),
        author=me,
        token=uuid.uuid4().hex,
    )
    return step.state, (*log, Entry(version=step.state.version, body=encode_entry(entry)))
