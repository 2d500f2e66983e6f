"""The store in this process's memory: for tests and the simulator, under the same contract.

Rule: time is an argument, so a simulated run has simulated time. It is as safe between threads as
the real one, and it keeps nothing when the process ends.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bamboo.errors import InputError, StoreUnavailable
from bamboo.ids import NodeId, RunId
from bamboo.ports import Entry, Lease, Snapshot

T = TypeVar("T")


@dataclass(slots=True)
class _Contents:
    store_id: str
    state: str
    entries: list[str]
    documents: dict[str, str]


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
                version=len(contents.entries) - 1,
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

    def commit(self, *, expected_version: int, state: str, entry: str) -> bool:
        with self._changed:
            contents = self._existing()
            if len(contents.entries) - 1 != expected_version:
                return False
            contents.state = state
            contents.entries.append(entry)
            self._changed.notify_all()
            return True

    def entries(self, *, after_version: int, timeout_s: float) -> Sequence[Entry]:
        def above() -> list[Entry]:
            stored = [] if self._contents is None else self._contents.entries
            first = max(0, after_version + 1)
            return [Entry(version=v, body=stored[v]) for v in range(first, len(stored))]

        return self._wait_for(above, timeout_s)

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
