"""What a node says of peers that it does not reach: until the store has heard it, and once."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bamboo.core.events import PeerLost
from bamboo.errors import StoreUnavailable
from bamboo.ids import NodeId
from bamboo.ports import PeerGone
from bamboo.runtime.node.control import watch_peers
from testbed.waiting import wait_until
from tests.core.build import running

pytestmark = pytest.mark.timeout(60)


class Line:
    """Connections of which these end, one in each look."""

    def __init__(self, *nodes: str) -> None:
        self._ends: Iterator[str] = iter(nodes)

    def wait_gone(self, timeout_s: float) -> list[PeerGone]:
        del timeout_s
        node = next(self._ends, None)
        return [] if node is None else [PeerGone(node=NodeId(node), seen_at_s=1.0)]


class Away:
    """Appends nothing as often as it is told to be away."""

    def __init__(self, times: int) -> None:
        self.times, self.said = times, list[str]()

    def append(self, event: PeerLost, *, deadline_s: float) -> None:
        assert deadline_s <= 5.0, "others may be gone meanwhile"
        if self.times:
            self.times -= 1
            raise StoreUnavailable("it does not answer")
        self.said.append(str(event.node))


def test_what_the_store_was_not_there_to_hear_is_said_once_it_is() -> None:
    store, seen, stop = Away(5), list[str](), threading.Event()
    doing: dict[str, Any] = {
        "transport": Line("n1.1", "n2.1"),
        "driver": store,
        "me": NodeId("n0.1"),
        "state": lambda: running(1, 4),
        "seen": lambda node, at_s: seen.append(node),
        "stop": stop,
    }
    thread = threading.Thread(target=watch_peers, kwargs=doing, daemon=True)
    thread.start()
    try:
        wait_until(lambda: len(store.said) == 2, what="both are said", timeout_s=30.0)
    finally:
        stop.set()
        thread.join(30.0)
    assert not thread.is_alive()
    assert seen == ["n1.1", "n2.1"], "both were seen while the store was away"
    assert store.said == ["n1.1", "n2.1"]
