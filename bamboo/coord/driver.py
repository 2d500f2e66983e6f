"""How a member changes the run: read, decide, compare-and-set, and again on a conflict.

Rule: no member acts on a decision before it is committed. Every member, the author included,
performs the effects addressed to it when it reads them from the log. There is no coordinator
process.
"""

import threading
import time
import uuid
from collections import deque
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
from bamboo.core.state import Policy, State
from bamboo.errors import InputError, StoreUnavailable, UnreadableRecord
from bamboo.ports import Snapshot, Store

APPEND_DEADLINE_S = 30.0
"""How long `append` keeps trying while the store is away, unless the caller says otherwise."""
SAY_AGAIN_DEADLINE_S = 2.0
SAID = 256
"""Number of events that a driver remembers, for a store that loses them."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The result of an event. The log's followers perform `effects`, not the caller."""

    version: int
    """The version that the event made, or the version at which it was stale."""
    changed: bool
    reason: str
    effects: tuple[Effect, ...]
    state: State
    """The state of that version."""


def create_run(
    store: Store, *, state: State, policy: Policy, documents: Mapping[str, str], at_s: float
) -> bool:
    """Store the first state, with the policy and the fixed documents; False when the run exists.

    `at_s` is Unix time by the creator's clock, kept for the record. Raises StoreUnavailable.
    """
    begin = encode_entry(Begin(state=state, policy=policy, at_s=at_s))
    return store.create(state=encode_state(state), entry=begin, documents=documents)


def read_begin(store: Store) -> Begin:
    """The first state in the log (version 0 unless the store was refilled) and the policy of the
    run. Raises UnreadableRecord, StoreUnavailable."""
    first = store.entries(after_version=-1, timeout_s=0.0)
    begin = decode_entry(first[0].body) if first else None
    if not isinstance(begin, Begin) or begin.state.version != first[0].version:
        raise UnreadableRecord("the log does not begin with the run's first state")
    return begin


def join_run(store: Store, me: str, *, deadline_s: float = 0.0) -> tuple["Driver", Begin]:
    """A driver for an existing run, with the first entry of the run.

    While the store is away, or has lost the run and not been refilled yet, this tries again up to
    `deadline_s` and then raises the last error: InputError (no such run) or StoreUnavailable.
    """
    give_up_s = time.monotonic() + deadline_s
    while True:
        try:
            store.read()
            begin = read_begin(store)
            driver = Driver(store, begin.policy, me)
            driver.state()
            return driver, begin
        except (InputError, StoreUnavailable):
            if time.monotonic() >= give_up_s:
                raise
            time.sleep(_LONGEST_PAUSE_S / 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """An event that was appended, or found stale, at that version of that store's content."""

    event: Event
    version: int
    store_id: str


class Driver:
    """One member's access to the run. Safe to use from several threads, like its store.

    `me` names the author in the log: a node's id, or `launcher` or `cli`.
    """

    def __init__(self, store: Store, policy: Policy, me: str) -> None:
        self._store = store
        self._policy = policy
        self._me = me
        self._met = False
        """Whether the run was seen in the store; from then on its absence is an outage."""
        self._said: deque[_Said] = deque(maxlen=SAID)
        self._lock = threading.Lock()

    @property
    def me(self) -> str:
        """The author of the events appended here."""
        return self._me

    def state(self) -> State:
        """The present state. Raises StoreUnavailable, InputError (no such run)."""
        return decode_state(self._read().state)

    def say_again(self, *, beyond: int) -> None:
        """Append again what was appended here, or found stale, at a version above `beyond`, to a
        store that was refilled as of `beyond`. Raises StoreUnavailable; then call it again."""
        now = self._read().store_id
        with self._lock:
            lost = [s for s in self._said if s.store_id != now and s.version > beyond]
        for said in lost:
            self.append(said.event, deadline_s=SAY_AGAIN_DEADLINE_S)
            with self._lock:
                self._said.remove(said)

    def append(self, event: Event, *, deadline_s: float = APPEND_DEADLINE_S) -> Appended:
        """Decide and commit the event, however many other members append at the same time.

        While the store is away it is tried again, up to `deadline_s` in all. Then the last
        StoreUnavailable is raised, and the event may or may not have been committed. A commit whose
        answer was lost is recognised by its token and not made twice. Raises CoreMisuse for an
        event that this member cannot truthfully report.
        """
        give_up_s = time.monotonic() + deadline_s
        token = uuid.uuid4().hex
        doubtful: tuple[Appended, Snapshot] | None = None
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                if doubtful is not None and self._is_committed(doubtful[0].version, token):
                    return self._noted(event, *doubtful)
                doubtful = None
                snapshot = self._read()
                outcome, entry = self._decide(snapshot, event, token)
                if not outcome.changed:
                    return self._noted(event, outcome, snapshot)
                doubtful = outcome, snapshot
                if self._commit(snapshot, outcome.state, entry):
                    return self._noted(event, outcome, snapshot)
                # Another commit was first, so the event must be decided again.
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

    def _read(self) -> Snapshot:
        try:
            snapshot = self._store.read()
        except InputError as error:
            if not self._met:
                raise
            raise StoreUnavailable(f"{error}; its members give it back") from error
        self._met = True
        return snapshot

    def _commit(self, snapshot: Snapshot, state: State, entry: Committed) -> bool:
        try:
            return self._store.commit(
                expected_version=snapshot.version,
                state=encode_state(state),
                entry=encode_entry(entry),
                store_id=snapshot.store_id,
            )
        except InputError as error:
            raise StoreUnavailable(f"{error}; its members give it back") from error

    def _noted(self, event: Event, outcome: Appended, snapshot: Snapshot) -> Appended:
        said = _Said(event=event, version=outcome.version, store_id=snapshot.store_id)
        with self._lock:
            self._said.append(said)
        return outcome

    def _decide(self, snapshot: Snapshot, event: Event, token: str) -> tuple[Appended, Committed]:
        """The decision on the event as of now, and the entry to commit."""
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
        return outcome, entry

    def _is_committed(self, version: int, token: str) -> bool:
        """Whether the entry of that version is the one that this token was drawn for."""
        found = self._store.entries(after_version=version - 1, timeout_s=0.0)
        if not found or found[0].version != version:
            return False
        entry = decode_entry(found[0].body)
        return isinstance(entry, Committed) and entry.token == token
