"""The rules of synchronisation (`topology.sync.Sync`) that a run has or is asked about, which lie
beside its state in the store.

Rule: a strategy is found by its hash, so what a name stands for never changes. What is read is
compared with the hash by which the core knows it, and never believed without.
"""

import json
import threading
import time
from collections.abc import Mapping

from bamboo.core.state import State
from bamboo.errors import InputError, StoreUnavailable
from bamboo.ports import Store
from bamboo.topology.strategy import canonical_json
from bamboo.topology.sync import Sync, sync_of

_PREFIX = "sync:"
FETCH_S = 5.0
"""How long a node tries to read a strategy before it says that it has none."""
RETRY_S = 0.1


def document_of(hash: str) -> str:
    """The name of the document with the strategy of this hash."""
    return _PREFIX + hash


def store_sync(store: Store, sync: Sync) -> str:
    """Store a strategy beside the state, so that it can be proposed; its hash. Raises
    StoreUnavailable, InputError."""
    store.add_document(document_of(sync.hash()), canonical_json(sync.body()))
    return sync.hash()


def stored_sync(store: Store, hash: str) -> Sync:
    """The strategy of this hash. Raises StoreUnavailable, and InputError where the store lacks it
    or has another text under its name."""
    read = Strategies()
    read.add(store.document(document_of(hash)))
    found = read.known(hash)
    if found is None:
        raise InputError(f"what the store has as the strategy {hash} is another text")
    return found


def needed(state: State) -> frozenset[str]:
    """The hashes of the strategies that a state names."""
    chosen = {choice.hash for choice in state.syncs}
    asked = {state.proposal.hash} if state.proposal is not None else set()
    return frozenset(chosen | asked)


def lacks(documents: Mapping[str, str], state: State) -> bool:
    """Whether these documents of a run lack a strategy that the state names."""
    return any(document_of(hash) not in documents for hash in needed(state))


class Strategies:
    """The strategies that a process has read. One thread fetches them, any thread asks."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Sync]] = {}

    def known(self, hash: str) -> Sync | None:
        """The strategy of this hash, or None while it was not read."""
        found = self._known.get(hash)
        return None if found is None else found[1]

    def documents(self) -> dict[str, str]:
        """The documents of all that was read."""
        return {document_of(hash): text for hash, (text, _) in self._known.items()}

    def fetch(self, store: Store, state: State, stop: threading.Event) -> bool:
        """Read what the state names and is not known yet; whether any was read. Tries for FETCH_S
        while the store is away. What the store lacks, or has with another hash, stays unknown."""
        give_up_s = time.monotonic() + FETCH_S
        missing = sorted(needed(state).difference(self._known))
        found = 0
        while missing and not stop.is_set():
            try:
                text = store.document(document_of(missing[0]))
            except StoreUnavailable:
                if time.monotonic() >= give_up_s:
                    break
                stop.wait(RETRY_S)
                continue
            except InputError:
                del missing[0]
                continue
            found += self.add(text) == missing.pop(0)
        return bool(found)

    def add(self, text: str) -> str:
        """Take in a strategy; its hash, or "" if the text is none."""
        try:
            sync = sync_of(json.loads(text))
        except (ValueError, RecursionError):
            return ""
        self._known[sync.hash()] = (text, sync)
        return sync.hash()
