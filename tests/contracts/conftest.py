"""Fixtures of the transport's suites; the fork server that they share ends with them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.forker import close_shared_forker
from tests.contracts.transport_net import Net


@pytest.fixture(scope="module", autouse=True)
def _fork_server() -> Iterator[None]:
    yield
    close_shared_forker()


@pytest.fixture(params=["ipc", "tcp", "plain"])
def net(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Net]:
    made = Net(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["tcp", "plain"])
def tcp(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Net]:
    made = Net(request.param, tmp_path)
    yield made
    made.close()
