"""How a member changes and follows the run: read, decide, compare-and-set, again on conflict.

Rule: nobody acts on a decision before it is committed; everybody, its author included, performs
the effects addressed to him when he reads them from the log. There is no coordinator process.
"""

import time
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
from bamboo.core.effects import Effect
from bamboo.core.events import Event
from bamboo.core.machine import transition
from bamboo.core.policy import Policy
from bamboo.core.state import State
from bamboo.errors import StoreUnavailable, UnreadableRecord
from bamboo.ports import Entry, Store

APPEND_DEADLINE_S = 30.0
"""How long `append` keeps trying while the store is away, unless the caller says otherwise."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What became of an event. `effects` are for those who follow the log, not for the caller."""

    version: int
    """The version that the event made, or that it was found stale against."""
    changed: bool
    reason: str
    effects: tuple[Effect, ...]
    state: State
    """The state of that version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One committed entry of the log. The first (version 0) has no event and no effects."""

    version: int
    event: Event | None
    effects: tuple[Effect, ...]
    reason: str
    now_s: float
    author: str


def create_run(
    store: Store, *, state: State, policy: Policy, documents: Mapping[str, str], at_s: float
) -> bool:
    """Store the first state, with the policy and the fixed documents; False when the run exists.

    `at_s` is Unix time by the creator's clock, kept for the record. Raises StoreUnavailable.
    """
    begin = encode_entry(Begin(state=state, policy=policy, at_s=at_s))
    return store.create(state=encode_state(state), entry=begin, documents=documents)


def read_begin(store: Store) -> Begin:
    """The first state and the policy of the run. Raises UnreadableRecord, StoreUnavailable."""
    first = store.entries(after_version=-1, timeout_s=0.0)
    begin = decode_entry(first[0].body) if first and first[0].version == 0 else None
    if not isinstance(begin, Begin):
        raise UnreadableRecord("the log does not begin with the run's first state")
    return begin


class Driver:
    """One member's hand on the run. Safe to use from several threads, like its store.

    `me` names the author in the log: a node's id, or `launcher`, `cli` and the like.
    """

    def __init__(self, store: Store, policy: Policy, me: str) -> None:
        self._store = store
        self._policy = policy
        self._me = me

    def state(self) -> State:
        """The present state. Raises StoreUnavailable, InputError (no such run)."""
        return decode_state(self._store.read().state)

    def append(self, event: Event, *, deadline_s: float = APPEND_DEADLINE_S) -> Appended:
        """Let the event be decided and committed, however many others do the same.

        While the store is away it is tried again, up to `deadline_s` in all; then the last
        StoreUnavailable is raised, and the event may or may not have been committed. A commit whose
        answer was lost is recognised by its token and not made twice. Raises CoreMisuse when the
        event is one that this member cannot honestly say.
        """
        give_up_s = time.monotonic() + deadline_s
        token = uuid.uuid4().hex
        doubtful: Appended | None = None
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                if doubtful is not None and self._is_committed(doubtful.version, token):
                    return doubtful
                doubtful = None
                outcome, expected_version, entry = self._decide(event, token)
                if not outcome.changed:
                    return outcome
                doubtful = outcome
                if self._store.commit(
                    expected_version=expected_version,
                    state=encode_state(outcome.state),
                    entry=encode_entry(entry),
                ):
                    return outcome
                # Somebody was faster: what the event means must be decided again.
                doubtful = None
                if time.monotonic() > give_up_s:
                    raise StoreUnavailable(
                        f"others were faster for {deadline_s:g} s; {event!r} was not committed"
                    )
            except StoreUnavailable:
                left_s = give_up_s - time.monotonic()
                if left_s <= 0:
                    raise
                time.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def follow(self, *, after_version: int, timeout_s: float) -> list[Decision]:
        """Decisions above `after_version`, in order; waits up to `timeout_s` for the first.

        Raises StoreUnavailable, and UnreadableRecord for an entry of another program version.
        """
        found = self._store.entries(after_version=after_version, timeout_s=timeout_s)
        return [_decision(entry) for entry in found]

    def _decide(self, event: Event, token: str) -> tuple[Appended, int, Committed]:
        """What the event means now, the version it was judged against, the entry to commit."""
        snapshot = self._store.read()
        state = decode_state(snapshot.state)
        step = transition(state, event, now_s=snapshot.now_s, policy=self._policy)
        outcome = Appended(
            version=step.state.version,
            changed=step.state is not state,
            reason=step.reason,
            effects=step.effects,
            state=step.state,
        )
        entry = Committed(
            event=event,
            now_s=snapshot.now_s,
            effects=step.effects,
            reason=step.reason,
            state_hash=state_hash(step.state),
            author=self._me,
            token=token,
        )
        return outcome, snapshot.version, entry

    def _is_committed(self, version: int, token: str) -> bool:
        """Whether the entry of that version is the one this token was drawn for."""
        found = self._store.entries(after_version=version - 1, timeout_s=0.0)
        if not found or found[0].version != version:
            return False
        entry = decode_entry(found[0].body)
        return isinstance(entry, Committed) and entry.token == token


def _decision(entry: Entry) -> Decision:
    body = decode_entry(entry.body)
    if isinstance(body, Begin):
        return Decision(
            version=entry.version,
            event=None,
            effects=(),
            reason=body.state.sentence,
            now_s=body.at_s,
            author="",
        )
    return Decision(
        version=entry.version,
        event=body.event,
        effects=body.effects,
        reason=body.reason,
        now_s=body.now_s,
        author=body.author,
    )
