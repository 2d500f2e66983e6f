"""What only the store in memory does: it takes its time from the caller."""

from bamboo.coord.memory_store import MemoryStore
from bamboo.ids import NodeId, run_id


def test_time_is_what_the_caller_says() -> None:
    now_s = 1000.0
    store = MemoryStore(run_id("test"), clock=lambda: now_s, store_id="mine")
    store.create(state="s", entry="e", documents={})
    store.beat(NodeId("a.1"), "{}")
    now_s = 1007.5
    assert store.read().now_s == 1007.5
    assert store.read().store_id == "mine"
    at_s, leases = store.leases()
    assert (at_s, leases[NodeId("a.1")].beaten_at_s) == (1007.5, 1000.0)
