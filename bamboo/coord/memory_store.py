"""The store in this process's memory, for tests and the simulator, under the same contract.

Rule: time is an argument, so a simulated run has simulated time. It is as thread-safe as the real
store, and its content ends with the process.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bamboo.errors import InputError, StoreUnavailable
from bamboo.ids import NodeId, RunId
from bamboo.ports import Entry, Lease, Offers, Snapshot

T = TypeVar("T")


@dataclass(slots=True)
class _Contents:
    store_id: str
    state: str
    entries: list[str]
    documents: dict[str, str]
    first: int = 0
    """Version of the first entry."""

    @property
    def version(self) -> int:
        return self.first + len(self.entries) - 1


class MemoryStore:
    """One run in memory (ports.Store). `clock` gives Unix seconds; waits use real time."""

    def __init__(
        self,
        run: RunId,
        *,
        clock: Callable[[], float] = time.time,
        store_id: str = "memory",
    ) -> None:
        self._run = run
        self._clock = clock
        self._store_id = store_id
        self._contents: _Contents | None = None
        self._offer: tuple[int, str, float] | None = None
        self._leases: dict[NodeId, Lease] = {}
        self._streams: dict[str, list[str]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def create(self, *, state: str, entry: str, documents: Mapping[str, str]) -> bool:
        with self._changed:
            self._check_open()
            if self._contents is not None:
                return False
            self._contents = _Contents(
                store_id=self._store_id, state=state, entries=[entry], documents=dict(documents)
            )
            self._changed.notify_all()
            return True

    def read(self) -> Snapshot:
        with self._changed:
            contents = self._existing()
            return Snapshot(
                version=contents.version,
                state=contents.state,
                now_s=self._clock(),
                store_id=contents.store_id,
            )

    def document(self, name: str) -> str:
        with self._changed:
            contents = self._existing()
            if name not in contents.documents:
                raise InputError(f"run {self._run} has no document {name!r} in its store")
            return contents.documents[name]

    def documents(self) -> Mapping[str, str]:
        with self._changed:
            self._check_open()
            return {} if self._contents is None else dict(self._contents.documents)

    def add_document(self, name: str, text: str) -> None:
        with self._changed:
            self._existing().documents.setdefault(name, text)

    def commit(self, *, expected_version: int, state: str, entry: str, store_id: str = "") -> bool:
        with self._changed:
            contents = self._existing()
            if contents.version != expected_version:
                return False
            if store_id not in ("", contents.store_id):
                return False
            contents.state = state
            contents.entries.append(entry)
            self._changed.notify_all()
            return True

    def entries(self, *, after_version: int, timeout_s: float) -> Sequence[Entry]:
        def above() -> list[Entry]:
            held = self._contents
            if held is None:
                return []
            first = max(held.first, after_version + 1)
            return [
                Entry(version=v, body=held.entries[v - held.first])
                for v in range(first, held.version + 1)
            ]

        return self._wait_for(above, timeout_s)

    def store_id(self) -> str:
        with self._changed:
            self._check_open()
            return "" if self._contents is None else self._contents.store_id

    def offer(self, *, version: int, offer: str, lease_s: float) -> Offers:
        with self._changed:
            self._check_open()
            now_s = self._clock()
            if self._contents is not None:
                return Offers(here=True, version=-1, best="", now_s=now_s)
            held = self._offer
            if offer and (held is None or version > held[0]):
                held = (version, offer, now_s if held is None else held[2])
            if held is None:
                return Offers(here=False, version=-1, best="", now_s=now_s)
            best, text, began_s = held
            # After a clock went back, the time for offers starts again.
            self._offer = (best, text, min(began_s, now_s))
            over = now_s - began_s >= lease_s
            return Offers(here=False, version=best, best=text if over else "", now_s=now_s)

    def refill(self, *, state: str, entries: Sequence[Entry], documents: Mapping[str, str]) -> bool:
        with self._changed:
            self._check_open()
            if self._contents is not None:
                return False
            self._contents = _Contents(
                store_id=uuid.uuid4().hex,
                state=state,
                entries=[entry.body for entry in entries],
                documents=dict(documents),
                first=entries[0].version,
            )
            self._offer = None
            self._changed.notify_all()
            return True

    def wipe(self) -> None:
        """Lose everything, like a server whose disk is gone."""
        with self._changed:
            self._contents = self._offer = None
            self._leases = {}
            self._streams = {}

    def beat(self, node: NodeId, payload: str) -> None:
        with self._changed:
            self._check_open()
            self._leases[node] = Lease(payload=payload, beaten_at_s=self._clock())

    def leases(self) -> tuple[float, Mapping[NodeId, Lease]]:
        with self._changed:
            self._check_open()
            return self._clock(), dict(self._leases)

    def append(self, stream: str, record: str) -> str:
        with self._changed:
            self._check_open()
            records = self._streams.setdefault(stream, [])
            records.append(record)
            self._changed.notify_all()
            return f"{len(records)}-0"

    def records(self, stream: str, *, after_id: str, timeout_s: float) -> Sequence[tuple[str, str]]:
        first = int(after_id.split("-", maxsplit=1)[0])

        def after() -> list[tuple[str, str]]:
            records = self._streams.get(stream, [])[first:]
            return [(f"{first + i}-0", record) for i, record in enumerate(records, start=1)]

        return self._wait_for(after, timeout_s)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait_for(self, look: Callable[[], list[T]], timeout_s: float) -> list[T]:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or look(), timeout=max(0.0, timeout_s))
            self._check_open()
            return look()

    def _existing(self) -> _Contents:
        self._check_open()
        if self._contents is None:
            raise InputError(f"there is no run {self._run} in the store; check the run's id")
        return self._contents

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"the store of run {self._run} was closed here")
