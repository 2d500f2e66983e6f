"""What a node does for others while its device computes ends before the operation does."""

from math import inf
from types import SimpleNamespace
from typing import cast

import pytest

from bamboo.runtime.state import transfer
from bamboo.runtime.state.inbound import Inbound
from bamboo.runtime.state.transfer import CHUNK_S, LEAST_WAIT_S, Transfers

UNTIL_S = 10.5


class Host:
    """In place of a node's transfers and mailbox: messages come every `every_s`, `messages` of
    them, and so do decisions while nothing is under way, of which that number `decided_after`
    begins it."""

    def __init__(
        self, *, every_s: float, messages: int, under_way: bool = True, decided_after: float = inf
    ) -> None:
        self._decided_after = decided_after
        self.now_s, self.served = 10.0, 0
        self.waits: list[float] = []
        self._out = SimpleNamespace(under_way=False)
        self._in: dict[str, str] = {}
        self.prefetch = SimpleNamespace(under_way=under_way)
        self._mailbox = self
        self._every_s, self._messages = every_s, messages
        self.looked, self.idle_waits = 0, 0

    def perf_counter(self) -> float:
        return self.now_s

    def collect(self, for_s: float) -> None:
        if self.looked == self._decided_after + 1:
            assert for_s == 0.0, "what is here already is served first"
            return
        assert for_s >= LEAST_WAIT_S, "the transport would not wait at all"
        self.waits.append(for_s)
        self._messages -= 1
        self.now_s += min(for_s, self._every_s) if self._messages >= 0 else for_s

    def look_ahead(self, inbound: Inbound) -> bool:
        assert inbound is cast(Inbound, self)
        self.looked += 1
        begins = self.looked == self._decided_after + 1
        self.prefetch.under_way |= begins
        return begins

    def wait(self, for_s: float) -> bool:
        """For a decision."""
        assert not self.prefetch.under_way, "messages would not be taken in"
        self.idle_waits += 1
        decided = self.idle_waits <= self._decided_after
        self.now_s += min(for_s, self._every_s) if decided else for_s
        return decided

    def serve(self) -> None:
        self.served += 1
        if self.served == 100:
            self.prefetch.under_way = False


def served(monkeypatch: pytest.MonkeyPatch, host: Host) -> Host:
    monkeypatch.setattr(transfer, "time", host)
    Transfers.serve_until(cast(Transfers, host), UNTIL_S, cast(Inbound, host))
    return host


@pytest.mark.parametrize("messages", [0, 3, 50])
def test_it_waits_for_messages_until_shortly_before_the_end(
    monkeypatch: pytest.MonkeyPatch, messages: int
) -> None:
    host = served(monkeypatch, Host(every_s=0.01, messages=messages))
    end_s = UNTIL_S - CHUNK_S
    assert end_s - LEAST_WAIT_S <= host.now_s <= end_s + 1e-9
    assert len(host.waits) == host.served
    assert host.served <= messages + 1


def test_nobody_is_served_where_nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = served(monkeypatch, Host(every_s=0.01, messages=9, under_way=False))
    assert (idle.served, idle.waits) == (0, [])
    assert idle.now_s <= UNTIL_S + 1e-9
    assert served(monkeypatch, Host(every_s=0.001, messages=400)).served == 100


def test_where_nothing_happens_one_wait_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    host = Host(every_s=0.01, messages=0, under_way=False)
    inbound = SimpleNamespace(wait=lambda for_s: bool(waits.append(for_s)))
    monkeypatch.setattr(transfer, "time", host)
    monkeypatch.setattr(host, "look_ahead", lambda inbound: False)
    assert Transfers.serve_until(cast(Transfers, host), UNTIL_S, cast(Inbound, inbound))
    assert waits == [pytest.approx(UNTIL_S - 10.0)]


def test_what_a_decision_begins_is_served_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    host = served(monkeypatch, Host(every_s=0.01, messages=9, under_way=False, decided_after=3))
    assert host.idle_waits == 3
    assert host.served > 9


def test_nobody_is_served_shortly_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(every_s=0.01, messages=9)
    host.now_s = UNTIL_S - CHUNK_S - LEAST_WAIT_S / 2
    assert served(monkeypatch, host).waits == []


def looked_at(*states: tuple[int, str, bool], anew: bool = False) -> list[int]:
    """Versions up to which a node that follows version 7, in which its roles are "these", looks
    ahead; a state is its (version, roles, whether all is laid out anew)."""
    seen: list[int] = []
    found = [
        SimpleNamespace(
            version=v, assignment=roles, reconfiguration=SimpleNamespace() if stands else None
        )
        for v, roles, stands in states
    ]

    def sync(state: SimpleNamespace) -> None:
        seen.append(state.version)
        host.prefetch.version = state.version

    host = SimpleNamespace(
        _anew=anew,
        _mailbox=SimpleNamespace(connect=lambda state: None, assignment="these"),
        prefetch=SimpleNamespace(version=7, sync=sync),
    )
    inbound = cast(Inbound, SimpleNamespace(states=lambda: found))
    assert Transfers.look_ahead(cast(Transfers, host), inbound) is bool(seen)
    assert not Transfers.look_ahead(cast(Transfers, host), inbound)
    return seen


def test_a_node_looks_ahead_up_to_another_role_and_once() -> None:
    assert looked_at((8, "these", False), (9, "these", False)) == [8, 9]
    assert looked_at((8, "these", False), (9, "others", False), (10, "these", False)) == [8]
    assert looked_at((8, "these", True), (9, "these", False)) == []
    assert looked_at((8, "these", False), anew=True) == []
    assert looked_at((6, "these", False), (7, "these", False), (8, "these", False)) == [8]
