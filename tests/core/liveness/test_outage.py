"""What of a wait counts while a store is away, and just after."""

import pytest

from bamboo.core.liveness.outage import AWAY_S, PIECES, WaitClock, Writing

LEASE_S = 3.0


def test_only_time_in_which_own_writes_succeed_is_waited() -> None:
    assert Writing().waited_s(100.0) == 0.0
    assert Writing(for_s=1e9).waited_s(100.0) == 100.0
    assert Writing(for_s=2.0).waited_s(100.0) == 2.0
    assert Writing(for_s=2.0, last_s=0.5).waited_s(100.0) == 1.5
    assert Writing(for_s=1e9, last_s=0.5).waited_s(2.0) == 1.5
    assert Writing(for_s=1e9, last_s=5.0).waited_s(2.0) == 0.0


def test_a_store_takes_writes_while_the_newest_was_taken_and_lately() -> None:
    for every_s in (0.2, 2.0, 60.0):
        late_s = every_s + AWAY_S
        assert not Writing().succeeds(every_s=every_s)
        assert Writing(for_s=0.01).succeeds(every_s=every_s)
        assert Writing(for_s=100.0, last_s=late_s).succeeds(every_s=every_s)
        assert not Writing(for_s=100.0, last_s=1.01 * late_s).succeeds(every_s=every_s)


def test_a_clock_for_waits_stands_still_during_an_outage_and_one_lease_after() -> None:
    clock = WaitClock(lease_s=LEASE_S)
    assert clock.at(100.0) == 100.0
    for now_s in (101.0, 102.0, 110.0):
        clock.away(now_s)
        assert clock.at(now_s) == 100.0
    assert clock.at(112.9) == 100.0
    assert clock.at(113.0) == pytest.approx(100.0)
    assert clock.at(115.0) == pytest.approx(102.0)
    clock.away(120.0)
    assert clock.at(121.0) == pytest.approx(102.0), "nothing since it was asked last counts"
    assert clock.at(124.0) == pytest.approx(103.0)


def test_an_outage_that_begins_within_the_lease_of_another_is_one_outage() -> None:
    clock = WaitClock(lease_s=LEASE_S)
    clock.at(10.0)
    clock.away(11.0)
    assert clock.at(13.0) == 10.0
    clock.away(13.5)
    assert clock.at(16.4) == 10.0
    assert clock.at(17.5) == pytest.approx(11.0)


def test_of_any_span_the_time_counts_in_which_the_clock_went() -> None:
    clock = WaitClock(lease_s=LEASE_S)
    assert clock.counted_s(50.0) == 0.0
    clock.at(100.0)
    clock.at(110.0)
    assert clock.counted_s(102.0) == 8.0
    assert clock.counted_s(50.0) == 10.0, "nothing is known of before"
    clock.away(111.0)
    clock.away(150.0)  # it stands still from 110 to 153
    clock.at(152.0)
    assert clock.counted_s(102.0) == 8.0
    assert clock.counted_s(120.0) == 0.0, "of one that began in the outage"
    clock.at(155.0)
    assert clock.counted_s(102.0) == 10.0
    assert clock.counted_s(120.0) == 2.0
    clock.away(156.0)  # and from 155 to 159
    assert clock.counted_s(102.0) == 10.0
    clock.at(160.0)
    assert clock.counted_s(102.0) == 11.0
    assert clock.counted_s(154.0) == 2.0
    assert clock.counted_s(161.0) == 0.0


def test_a_clock_that_was_never_asked_begins_with_the_outage() -> None:
    clock = WaitClock(lease_s=LEASE_S)
    clock.away(50.0)
    assert clock.at(52.0) == 50.0
    assert clock.at(54.0) == pytest.approx(51.0)


@pytest.mark.parametrize("there_s", [0.5, 1.0, 2.5])
def test_a_clock_goes_though_the_store_comes_and_goes(there_s: float) -> None:
    """Each outage of half a second comes before the lease after the last one is over."""
    clock, now_s = WaitClock(lease_s=LEASE_S), 0.0
    began_s = clock.at(now_s)
    for _ in range(int(4 * PIECES * LEASE_S / there_s)):
        for _ in range(5):
            now_s += 0.1
            clock.away(now_s)
            clock.at(now_s)
        for _ in range(round(there_s / 0.1)):
            now_s += 0.1
            clock.at(now_s)
    counted_s = clock.at(now_s) - began_s
    assert 2 * PIECES * LEASE_S <= counted_s <= 4 * PIECES * LEASE_S
    now_s += 10 * LEASE_S
    clock.at(now_s)
    clock.away(now_s + 1.0)
    before_s = clock.at(now_s + 1.0)
    assert clock.at(now_s + 1.0 + 0.9 * LEASE_S) == pytest.approx(before_s), "a lease as ever"


def test_a_full_lease_between_outages_makes_each_one_an_outage_of_its_own() -> None:
    clock = WaitClock(lease_s=LEASE_S)
    for number in range(3 * PIECES):
        away_s = number * LEASE_S
        assert clock.away(away_s), "a lease is granted"
        clock.at(away_s + LEASE_S / 3)
        clock.at(away_s + LEASE_S)
