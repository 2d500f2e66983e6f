"""Following a run's decision log: every entry with the state that it led to.

The state is recomputed by `transition` from the first entry on, so a follower needs the log alone,
and performs each effect with the state that belongs to it. A follower that is a member also keeps
the end of the log, and gives it back to a store that has lost the run (see `refill`).

Rule: a follower never takes decisions of another history for its own. After the store was refilled
without decisions that it had read, it is `overtaken`: what it did on those no longer counts.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bamboo.coord.codec import Begin, Committed, decode_entry, state_hash
from bamboo.coord.driver import Driver
from bamboo.coord.refill import Known, offer_to
from bamboo.core.effects import Effect
from bamboo.core.events import Event, StoreRefilled
from bamboo.core.machine import transition
from bamboo.core.state import Policy, State
from bamboo.errors import BambooError, CoreMisuse, StoreUnavailable
from bamboo.ports import Entry, Store

KEPT = 64
"""Number of decisions that a member keeps for a store that loses them. A member that is further
behind at a refill is overtaken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One committed transition."""

    event: Event
    now_s: float
    effects: tuple[Effect, ...]
    reason: str
    state: State
    """The state after it."""
    author: str

    @property
    def version(self) -> int:
        return self.state.version


class OtherHistory(BambooError):
    """An entry does not lead to the state that its author recorded."""


class Follower:
    """Reads on from where it stopped; it belongs to one thread. With a `driver` it is a member: it
    helps to refill a store, and then appends its own lost events again."""

    def __init__(self, driver: Driver | None = None) -> None:
        self._driver = driver
        self._state: State | None = None
        self._policy = Policy()
        self._version = -1
        self._store_id = ""
        self._documents: Mapping[str, str] | None = None
        """The documents of the run; None until they were read."""
        self._first: Begin | None = None
        self._end: deque[tuple[Entry, State]] = deque()
        """The last entries, each with the state before it."""
        self._say_again: int | None = None
        self.overtaken = False
        """Whether decisions that were returned here no longer count. A member has to end; any other
        follower gets the decisions of the new history."""

    @property
    def state(self) -> State | None:
        """The newest state seen; None before the first entry."""
        return self._state

    @property
    def first(self) -> Begin | None:
        """The first entry of the log, once it was read."""
        return self._first

    def poll(self, store: Store, *, timeout_s: float) -> list[Decision]:
        """The decisions since the last call. Waits up to `timeout_s` for the first. Raises
        StoreUnavailable, also while a store has lost the run."""
        self._repeat(store)
        entries = store.entries(after_version=self._version, timeout_s=timeout_s)
        try:
            out = self.read(entries)
        except OtherHistory:
            if not self._lost_track(store):
                raise
            return []
        unsure = not entries or not self._store_id
        try:
            if unsure and self._state is not None and self._lost_track(store):
                return []
        except StoreUnavailable:
            if not out:
                raise
            # Entries that were read stay read and are returned once; the next call asks the store.
        return out

    def note_documents(self, documents: Mapping[str, str]) -> None:
        """Documents that were added to the run since its first ones were read."""
        if self._documents is not None:
            self._documents = {**self._documents, **documents}

    def catch_up(self, store: Store) -> list[Decision]:
        """All decisions that are in the log by now; a store returns them in bounded portions."""
        out: list[Decision] = []
        while entries := store.entries(after_version=self._version, timeout_s=0.0):
            out += self.read(entries)
        return out

    def read(self, entries: Sequence[Entry]) -> list[Decision]:
        """The decisions of these entries, which must follow the entries read before.

        Raises OtherHistory when an entry does not lead to the state that its author recorded.
        """
        out = []
        for entry in entries:
            decoded = decode_entry(entry.body)
            if isinstance(decoded, Begin):
                self._begin(entry, decoded)
            else:
                out.append(self._apply(entry, decoded))
            self._version = entry.version
        return out

    def _begin(self, entry: Entry, begin: Begin) -> None:
        if self._state is not None:
            raise OtherHistory(f"the log begins again with version {entry.version}")
        self._state = begin.state
        self._policy = begin.policy
        self._first = begin

    def _apply(self, entry: Entry, said: Committed) -> Decision:
        before = self._state
        if before is None:
            raise BambooError(
                f"the log begins with version {entry.version}; its first entry is missing"
            )
        try:
            after = transition(before, said.event, now_s=said.now_s, policy=self._policy).state
        except CoreMisuse as error:
            raise OtherHistory(f"decision {entry.version} cannot be made here: {error}") from error
        if after.version != entry.version or state_hash(after) != said.state_hash:
            raise OtherHistory(
                f"decision {entry.version} led {said.author} to another state than it leads us: "
                "different releases of bamboo share this run; use one"
            )
        if self._driver is not None:
            self._end.append((entry, before))
            if len(self._end) > KEPT:
                self._end.popleft()
            if isinstance(said.event, StoreRefilled):
                beyond = before.version
                pending = self._say_again
                self._say_again = beyond if pending is None else min(pending, beyond)
        self._state = after
        return Decision(
            event=said.event,
            now_s=said.now_s,
            effects=said.effects,
            reason=said.reason,
            state=after,
            author=said.author,
        )

    # ------------------------------------------------------------------ a store that lost the run

    def _repeat(self, store: Store) -> None:
        """Append again what the store lost; if it has lost the run again, refill it first."""
        if self._driver is None or self._say_again is None:
            return
        try:
            self._driver.say_again(beyond=self._say_again)
        except StoreUnavailable:
            if store.store_id() == "":
                self._give_back(store)
            raise
        self._say_again = None

    def _lost_track(self, store: Store) -> bool:
        """Whether the store holds a different history by now. Raises StoreUnavailable while it
        holds none."""
        found = store.store_id()
        if found == "":
            self._give_back(store)
            raise StoreUnavailable("the store has lost the run; its members give it back")
        if found == self._store_id:
            return False
        if not self._is_ours(store):
            self.overtaken = True
            self._state = None
            self._version = -1
            self._store_id = ""
            self._end.clear()
            return True
        if self._driver is not None:
            documents = store.documents()
            if store.store_id() != found:
                raise StoreUnavailable("the store lost the run while its documents were read")
            self._documents = documents
        self._store_id = found
        return False

    def _is_ours(self, store: Store) -> bool:
        """Whether the log leads to our state at our version."""
        assert self._state is not None
        found = store.entries(after_version=self._version - 1, timeout_s=0.0)
        if not found or found[0].version != self._version:
            return False
        entry = decode_entry(found[0].body)
        theirs = state_hash(entry.state) if isinstance(entry, Begin) else entry.state_hash
        return theirs == state_hash(self._state)

    def _give_back(self, store: Store) -> None:
        if self._driver is None or self._first is None or self._state is None:
            return
        before = self._end[0][1] if self._end else self._state
        known = Known(
            begin=Begin(state=before, policy=self._policy, at_s=self._first.at_s),
            entries=tuple(entry for entry, _ in self._end),
            state=self._state,
        )
        offer_to(store, known, documents=self._documents, me=self._driver.me)


def all_records(store: Store, stream: str) -> Iterator[str]:
    """Every record that is in a stream by now, in order."""
    after_id = "0"
    while records := store.records(stream, after_id=after_id, timeout_s=0.0):
        yield from (record for _, record in records)
        after_id = records[-1][0]
