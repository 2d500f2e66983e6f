"""What a node does for others while its device computes ends before the operation does."""

from types import SimpleNamespace
from typing import cast

import pytest

from bamboo.runtime import transfer
from bamboo.runtime.transfer import CHUNK_S, LEAST_WAIT_S, Transfers

UNTIL_S = 10.5


class Host:
    """In place of a node's transfers and mail: letters come every `every_s`, `letters` of them."""

    def __init__(self, *, every_s: float, letters: int, under_way: bool = True) -> None:
        self.now_s, self.served = 10.0, 0
        self.waits: list[float] = []
        self._out: dict[str, str] = {}
        self._in: dict[str, str] = {}
        self.ahead = SimpleNamespace(under_way=under_way)
        self._mail = self
        self._every_s, self._letters = every_s, letters

    def perf_counter(self) -> float:
        return self.now_s

    def collect(self, for_s: float) -> None:
        assert for_s >= LEAST_WAIT_S, "the transport would not wait at all"
        self.waits.append(for_s)
        self._letters -= 1
        self.now_s += min(for_s, self._every_s) if self._letters >= 0 else for_s

    def serve(self) -> None:
        self.served += 1
        if self.served == 100:
            self.ahead.under_way = False


def served(monkeypatch: pytest.MonkeyPatch, host: Host) -> Host:
    monkeypatch.setattr(transfer, "time", host)
    Transfers.serve_until(cast(Transfers, host), UNTIL_S)
    return host


@pytest.mark.parametrize("letters", [0, 3, 50])
def test_it_waits_for_letters_until_shortly_before_the_end(
    monkeypatch: pytest.MonkeyPatch, letters: int
) -> None:
    host = served(monkeypatch, Host(every_s=0.01, letters=letters))
    end_s = UNTIL_S - CHUNK_S
    assert end_s - LEAST_WAIT_S <= host.now_s <= end_s + 1e-9
    assert len(host.waits) == host.served
    assert host.served <= letters + 1


def test_it_ends_when_nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch, Host(every_s=0.01, letters=9, under_way=False)).served == 0
    assert served(monkeypatch, Host(every_s=0.001, letters=400)).served == 100


def test_nobody_is_served_shortly_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(every_s=0.01, letters=9)
    host.now_s = UNTIL_S - CHUNK_S - LEAST_WAIT_S / 2
    assert served(monkeypatch, host).waits == []
