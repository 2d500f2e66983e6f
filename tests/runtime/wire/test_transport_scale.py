"""A grid of hundreds: everybody connects to everybody at once, and nobody looks dead for it."""

import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo.ids import NodeId
from bamboo.runtime.wire.transport import ZmqTransport

PEERS = 400
"""More than the 341 that the library's own limit of sockets allows, and more than fit the queue
that it asks for by default."""


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open files as the system grants: each connection takes several."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"at most {hard} open files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_hundreds_of_connections_at_once_are_all_taken() -> None:
    with tempfile.TemporaryDirectory(prefix="bt-") as name:
        one, other = (
            ZmqTransport(me=NodeId(which), bind=f"ipc://{Path(name) / which}") for which in "ab"
        )
        try:
            one.reconfigure(
                generation=1, members={NodeId(f"n{i}"): other.endpoint for i in range(PEERS)}
            )
            gone = []
            end_s = time.monotonic() + 1.0
            while (left_s := end_s - time.monotonic()) > 0:
                gone += one.wait_gone(left_s)
            assert not gone
        finally:
            one.close()
            other.close()
