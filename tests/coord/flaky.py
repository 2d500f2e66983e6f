"""A store in front of another one that does as told: stays away, refuses, or loses an answer."""

from collections.abc import Callable, Mapping, Sequence

from bamboo.errors import StoreUnavailable
from bamboo.ids import NodeId
from bamboo.ports import Entry, Lease, Offers, Snapshot, Store


class FlakyStore:
    """Passes calls on; each commit asks `before_commit` and then `after_commit` first, which may
    raise StoreUnavailable; while `away` every call does, while it `refuses` each that writes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = self.refuses = False
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None

    def _check(self) -> Store:
        if self.away:
            raise StoreUnavailable("away")
        return self._store

    def _check_write(self) -> Store:
        store = self._check()
        if self.refuses:
            raise StoreUnavailable("READONLY You can't write against a read only replica.")
        return store

    def create(self, *, state: str, entry: str, documents: Mapping[str, str]) -> bool:
        return self._check_write().create(state=state, entry=entry, documents=documents)

    def read(self) -> Snapshot:
        return self._check().read()

    def document(self, name: str) -> str:
        return self._check().document(name)

    def documents(self) -> Mapping[str, str]:
        return self._check().documents()

    def add_document(self, name: str, text: str) -> None:
        self._check_write().add_document(name, text)

    def store_id(self) -> str:
        return self._check().store_id()

    def offer(self, *, version: int, offer: str, lease_s: float) -> Offers:
        return self._check_write().offer(version=version, offer=offer, lease_s=lease_s)

    def refill(self, *, state: str, entries: Sequence[Entry], documents: Mapping[str, str]) -> bool:
        return self._check_write().refill(state=state, entries=entries, documents=documents)

    def commit(self, *, expected_version: int, state: str, entry: str, store_id: str = "") -> bool:
        store = self._check_write()
        self.before_commit()
        done = store.commit(
            expected_version=expected_version, state=state, entry=entry, store_id=store_id
        )
        self.after_commit()
        return done

    def entries(self, *, after_version: int, timeout_s: float) -> Sequence[Entry]:
        return self._check().entries(after_version=after_version, timeout_s=timeout_s)

    def beat(self, node: NodeId, payload: str) -> None:
        self._check_write().beat(node, payload)

    def leases(self) -> tuple[float, Mapping[NodeId, Lease]]:
        return self._check().leases()

    def append(self, stream: str, record: str) -> str:
        return self._check_write().append(stream, record)

    def records(self, stream: str, *, after_id: str, timeout_s: float) -> Sequence[tuple[str, str]]:
        return self._check().records(stream, after_id=after_id, timeout_s=timeout_s)

    def close(self) -> None:
        self._store.close()
