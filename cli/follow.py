"""Follows a run's decision log: every entry with the state that it led to.

The state is recomputed by `transition` from the first entry on, so a follower needs the log alone,
and what it shows is what was decided, not a later reading of the document.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bamboo.coord.codec import Begin, Committed, decode_entry, state_hash
from bamboo.core.effects import Effect
from bamboo.core.events import Event
from bamboo.core.machine import transition
from bamboo.core.policy import Policy
from bamboo.core.state import State
from bamboo.errors import BambooError
from bamboo.ports import Entry, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One committed transition."""

    event: Event
    now_s: float
    effects: tuple[Effect, ...]
    reason: str
    state: State
    """After it."""


class Follower:
    """Reads on from where it stopped; belongs to one thread."""

    def __init__(self) -> None:
        self._state: State | None = None
        self._policy = Policy()
        self._version = -1

    @property
    def state(self) -> State | None:
        """The newest state seen; None before the first entry."""
        return self._state

    def poll(self, store: Store, *, timeout_s: float) -> list[Decision]:
        """The decisions since the last call; waits up to `timeout_s` for the first."""
        return self.read(store.entries(after_version=self._version, timeout_s=timeout_s))

    def catch_up(self, store: Store) -> list[Decision]:
        """All decisions that are in the log by now; a store gives them in bounded portions."""
        out: list[Decision] = []
        while entries := store.entries(after_version=self._version, timeout_s=0.0):
            out += self.read(entries)
        return out

    def read(self, entries: Sequence[Entry]) -> list[Decision]:
        """The decisions of these entries, which must follow those read before.

        Raises BambooError when an entry does not lead to the state that its author recorded.
        """
        out = []
        for entry in entries:
            decoded = decode_entry(entry.body)
            if isinstance(decoded, Begin):
                self._state, self._policy = decoded.state, decoded.policy
            else:
                out.append(self._apply(entry.version, decoded))
            self._version = entry.version
        return out

    def _apply(self, version: int, entry: Committed) -> Decision:
        if self._state is None:
            raise BambooError(f"the log begins with version {version}; its first entry is missing")
        after = transition(self._state, entry.event, now_s=entry.now_s, policy=self._policy).state
        if state_hash(after) != entry.state_hash:
            raise BambooError(
                f"decision {version} led {entry.author} to another state than it leads us: "
                "different releases of bamboo share this run; use one"
            )
        self._state = after
        return Decision(
            event=entry.event,
            now_s=entry.now_s,
            effects=entry.effects,
            reason=entry.reason,
            state=after,
        )


def all_records(store: Store, stream: str) -> Iterator[str]:
    """Every record of a stream that is there by now, in order."""
    after_id = "0"
    while records := store.records(stream, after_id=after_id, timeout_s=0.0):
        yield from (record for _, record in records)
        after_id = records[-1][0]
