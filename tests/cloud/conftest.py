"""What the tests of fleets begin with."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud.fake import FakeProvider
from cloud.fleet import Fleet
from cloud.provider import Offer
from tests.cloud.fleets import A, B, Clock, make_fleet


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider(listed=(Offer(pool=B, usd_per_hour=0.5), Offer(pool=A, usd_per_hour=0.4)))


@pytest.fixture
def fleet(provider: FakeProvider, clock: Clock, tmp_path: Path) -> Fleet:
    return make_fleet(provider, clock, tmp_path)


@pytest.fixture
def temporary_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where this test's local cloud has its directory: a short path, as sockets need."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as root:
        monkeypatch.setenv("TMPDIR", root)
        yield Path(root)
