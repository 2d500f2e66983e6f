"""Every test that starts processes is marked `e2e`; the fork server they share ends with them."""

from collections.abc import Iterator

import pytest

from testbed.forker import close_shared_forker


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> Iterator[None]:
    yield
    close_shared_forker()
