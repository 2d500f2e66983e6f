"""Who stands still is suspected, then gone; the store's own absence accuses nobody."""

from collections.abc import Callable

import pytest

from bamboo.coord.writes import Writes
from bamboo.core.liveness.detector import LeaseView, judge
from bamboo.core.liveness.outage import PIECES, Writing
from bamboo.core.state import Policy
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.ports import Lease

POLICY = Policy(suspect_s=1.0, gone_s=3.0)
A, B = NodeId("a.1"), NodeId("b.1")


SURE = Writing(for_s=1e9)
"""An observer that never met a refusal and wrote just now."""


BEAT_S = 0.2
COMES_AND_GOES = {
    "one beat of each lease is refused": lambda beat: beat % 14 > 0,
    "every other beat is refused": lambda beat: beat % 2 > 0,
    "one beat of each lease is taken": lambda beat: beat % 14 == 0,
    "away for two leases, there for half of one": lambda beat: beat % 38 > 30,
}


class Observer:
    """One observer reading simulated leases."""

    def __init__(self, *watched: NodeId) -> None:
        self.view = LeaseView()
        self.watched = watched
        self.leases: dict[NodeId, Lease] = {}
        self.writing = SURE

    def beat(self, node: NodeId, progress: int, at_s: float) -> None:
        self.leases[node] = Lease(payload=f'{{"progress": {progress}}}', beaten_at_s=at_s)

    def read(self, now_s: float) -> list[NodeId]:
        """The nodes judged gone at this reading."""
        self.view, lost = judge(
            self.view,
            watched=self.watched,
            leases=self.leases,
            now_s=now_s,
            writing=self.writing,
            policy=POLICY,
            reporter="me",
        )
        assert all((event.reporter, event.cause) == ("me", "lease") for event in lost)
        assert {event.node for event in lost} <= set(self.view.suspects)
        return [event.node for event in lost]


def run(observer: Observer, *, to_s: float, alive: tuple[NodeId, ...], from_s: float = 0.0) -> None:
    """Beats and readings every 0.2 s; nobody is gone and nobody alive suspected meanwhile."""
    steps = round((to_s - from_s) / 0.2)
    for i in range(1, steps + 1):
        now_s = from_s + i * 0.2
        for node in alive:
            observer.beat(node, round(now_s * 10), now_s - 0.05)
        assert observer.read(now_s) == []
        assert not set(alive) & set(observer.view.suspects)


@pytest.mark.parametrize("away_s", [1.6, 2.85, 2.95, 3.0, 3.1, 10.0])
def test_the_first_reading_after_an_outage_accuses_nobody(away_s: float) -> None:
    observer = Observer(A, B)
    run(observer, to_s=10.0, alive=(A, B))
    assert observer.read(10.0 + away_s) == []  # before anybody could beat again
    run(observer, from_s=10.0 + away_s, to_s=20.0 + away_s, alive=(A, B))


def test_missing_beats_make_suspect_then_gone() -> None:
    observer = Observer(A, B)
    run(observer, to_s=10.0, alive=(A, B))
    run(observer, from_s=10.0, to_s=12.8, alive=(A,))
    assert observer.view.suspects == (B,)
    observer.beat(A, 1000, 12.99)
    assert observer.read(13.0) == [B]
    # Until the caller stops watching it, it is told again.
    observer.beat(A, 1001, 13.19)
    assert observer.read(13.2) == [B]
    observer.watched = (A,)
    assert observer.read(13.4) == []


def test_frozen_progress_is_like_missing_beats() -> None:
    observer = Observer(A)
    run(observer, to_s=5.0, alive=(A,))
    for i in range(1, 16):
        observer.beat(A, 50, 5.0 + 0.2 * i)
        lost = observer.read(5.0 + 0.2 * i)
    assert lost == [A]


@pytest.mark.parametrize("first", [0, 5])
def test_beats_that_say_nothing_are_no_life(first: int) -> None:
    for payload in ("", "null", "[1]", "{}", '{"progress": "7"}', '{"progress": true}', "{"):
        observer = Observer(A)
        observer.beat(A, first, 0.0)
        observer.read(0.0)
        lost = []
        for i in range(1, 7):
            observer.leases[A] = Lease(payload=payload, beaten_at_s=0.5 * i)
            lost = observer.read(0.5 * i)
        assert lost == [A], payload


def test_the_first_steps_of_a_node_are_growth() -> None:
    observer = Observer(A)
    for number in range(3):
        observer.beat(A, number, 1.2 * number)
        assert observer.read(1.2 * number) == []
        assert observer.view.suspects == ()


def test_progress_that_falls_is_no_growth() -> None:
    observer = Observer(A)
    observer.beat(A, 100, 0.0)
    observer.read(0.0)
    lost = []
    for i in range(1, 7):
        observer.beat(A, i, 0.5 * i)
        lost = observer.read(0.5 * i)
    assert lost == [A]


def test_a_node_that_never_beats_is_judged_from_the_first_reading() -> None:
    observer = Observer(A)
    assert observer.read(100.0) == []
    assert observer.read(101.5) == []
    assert observer.read(102.9) == []
    assert observer.read(103.0) == [A]


def test_after_an_outage_everybody_gets_a_full_lease() -> None:
    observer = Observer(A, B)
    run(observer, to_s=5.0, alive=(A, B))
    # The store was away for a minute and comes back with the old leases.
    assert observer.read(65.0) == []
    assert not observer.view.suspects
    observer.beat(A, 999, 66.4)
    assert observer.read(66.5) == []
    assert observer.view.suspects == (B,)
    observer.beat(A, 1000, 67.0)
    assert observer.read(67.9) == []
    assert observer.view.suspects == (B,)
    assert observer.read(68.0) == [B]


def test_a_gap_of_half_a_lease_is_no_outage() -> None:
    observer = Observer(A)
    run(observer, to_s=5.0, alive=(A,))
    assert observer.read(6.5) == []
    assert observer.view.suspects == (A,)
    assert observer.read(8.0) == [A]


def test_a_wiped_store_accuses_nobody_for_one_lease() -> None:
    observer = Observer(A, B)
    run(observer, to_s=5.0, alive=(A, B))
    assert observer.read(6.4) == []
    observer.leases.clear()
    assert observer.read(7.9) == []
    assert not observer.view.suspects
    observer.beat(A, 998, 9.3)
    assert observer.read(9.4) == []
    observer.beat(A, 999, 9.9)
    assert observer.read(10.0) == []
    # b never beats again: its time ran from the wipe, not for ever anew.
    assert observer.read(10.8) == []
    assert observer.read(10.9) == [B]


def test_a_clock_that_goes_back_accuses_nobody() -> None:
    observer = Observer(A)
    run(observer, to_s=5.0, alive=(A,))
    assert observer.read(2.0) == []
    assert observer.read(3.5) == []
    assert observer.read(4.9) == []
    assert observer.read(5.0) == [A]


def test_a_beat_from_the_future_counts_as_now() -> None:
    observer = Observer(A)
    observer.beat(A, 1, 0.0)
    observer.read(0.0)
    observer.beat(A, 2, 1e9)
    assert observer.read(1.0) == []
    assert observer.read(2.5) == []
    assert observer.read(4.0) == [A]


def test_a_late_reader_dates_life_by_the_beat() -> None:
    observer = Observer(A)
    observer.beat(A, 1, 0.0)
    observer.read(0.0)
    observer.beat(A, 2, 0.5)
    assert observer.read(1.5) == []
    assert observer.read(2.9) == []
    assert observer.view.suspects == (A,)
    assert observer.read(3.5) == [A]


@pytest.mark.parametrize("refused_s", [0.4, 2.6, 3.0, 3.4, 8.0])
def test_a_store_that_answers_and_refuses_makes_nobody_gone(refused_s: float) -> None:
    """Its leases are read every 0.2 s, and all are old: nobody could renew one."""
    observer = Observer(A, B)
    run(observer, to_s=10.0, alive=(A, B))
    steps = round(refused_s / 0.2)
    observer.writing = Writing()
    for i in range(1, steps + 1):
        assert observer.read(10.0 + 0.2 * i) == []
        assert not observer.view.suspects
    # It takes our beat again; that of A comes a little later, and B never beats again.
    back_s = 10.0 + 0.2 * steps
    gone_at_s: list[float] = []
    for i in range(1, 21):
        now_s = back_s + 0.2 * i
        observer.writing = Writing(for_s=0.2 * i, last_s=0.05)
        if i > 5:
            observer.beat(A, 1000 + i, now_s - 0.05)
        lost = observer.read(now_s)
        assert A not in lost
        gone_at_s += [now_s - back_s for node in lost if node == B]
    assert min(gone_at_s) == pytest.approx(POLICY.gone_s + 0.2), "after one full lease, not two"


def test_who_is_refused_alone_accuses_nobody_for_ever() -> None:
    """The others live and beat; and one of them stands still, which is for others to say."""
    observer = Observer(A, B)
    run(observer, to_s=5.0, alive=(A, B))
    observer.writing = Writing()
    for i in range(1, 200):
        observer.beat(A, 1000 + i, 5.0 + 0.2 * i)
        assert observer.read(5.0 + 0.2 * i) == []


def test_a_write_that_is_not_answered_is_no_evidence() -> None:
    """The store is read and holds writes back: nothing is refused for now."""
    observer = Observer(A)
    run(observer, to_s=10.0, alive=(A,))
    for i in range(1, 100):
        observer.writing = Writing(for_s=1e9, last_s=0.2 * i)
        assert observer.read(10.0 + 0.2 * i) == []
        assert not observer.view.suspects


@pytest.mark.parametrize(
    ("suspect_s", "gone_s"), [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0), (1.0, float("inf"))]
)
def test_impossible_policies_are_refused(suspect_s: float, gone_s: float) -> None:
    with pytest.raises(CoreMisuse, match="0 < suspect_s <= gone_s"):
        Policy(suspect_s=suspect_s, gone_s=gone_s)


@pytest.mark.parametrize("takes", COMES_AND_GOES.values(), ids=COMES_AND_GOES)
def test_a_store_that_comes_and_goes_makes_nobody_immortal(takes: Callable[[int], bool]) -> None:
    """No lease passes in which all own writes succeed. Who lives is never accused, and who does not
    is gone once own writes vouched for some leases in all."""
    now_s, taken = 0.0, 0
    writes = Writes(every_s=BEAT_S, clock=lambda: now_s)
    observer, lost = Observer(A, B), []
    for beat in range(5000):
        now_s += BEAT_S
        if takes(beat):
            writes.written()
            observer.beat(A, beat, now_s)
            taken += 1
        else:
            writes.refused()
        observer.writing = writes.now()
        lost = observer.read(now_s)
        assert A not in lost
        assert not lost or taken >= POLICY.gone_s / BEAT_S, "never in less than a lease"
        if lost:
            break
    assert lost == [B]
    assert taken <= PIECES * POLICY.gone_s / BEAT_S + 2
