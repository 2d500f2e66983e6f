"""Seats of a trace as replicas that live only while all of their nodes do."""

import pytest

from bamboo.sim.market.replay import SeatEvent
from benchmarks.measuring.trace_torchft import changes, node_hours, scaled


def filled(at_s: float, *seats: int) -> list[SeatEvent]:
    return [SeatEvent(at_s=at_s, seat=seat, filled=True) for seat in seats]


def lost(at_s: float, *seats: int) -> list[SeatEvent]:
    return [SeatEvent(at_s=at_s, seat=seat, filled=False) for seat in seats]


def test_a_replica_goes_with_any_of_its_nodes_and_its_others_are_free_again() -> None:
    events = [*filled(0, 0, 1, 2, 3, 4, 5), *lost(10, 4), *filled(20, 4)]
    begin, hit, back = changes(events, size=3, most=2)
    assert (begin.started, begin.alone) == ((0, 1), True)
    assert (hit.killed, hit.started, hit.alone) == ((1,), (), False)
    assert (back.at_s, back.started, back.alone) == (20, (2,), False)


def test_spare_nodes_make_a_new_replica_at_once_and_more_than_the_most_are_not_made() -> None:
    events = [*filled(0, *range(8)), *lost(10, 0, 3)]
    begin, hit = changes(events, size=3, most=2)
    assert begin.started == (0, 1)
    assert hit.killed == (0, 1)
    assert hit.started == (2, 3)
    assert hit.alone
    assert changes(filled(0, *range(9)), size=3, most=2)[0].started == (0, 1)


def test_a_loss_of_a_free_node_changes_nothing() -> None:
    assert len(changes([*filled(0, *range(4)), *lost(5, 3)], size=3, most=2)) == 1


def test_node_hours_are_those_between_two_times() -> None:
    events = [*filled(0, 0, 1), *lost(3600, 1), *filled(9000, 1)]
    assert node_hours(events, begin_s=1800, end_s=7200) == pytest.approx(2 * 0.5 + 1.0)
    assert node_hours(events, begin_s=0, end_s=10800) == pytest.approx(2 + 1.5 + 2 * 0.5)


def test_a_trace_is_played_faster() -> None:
    assert [e.at_s for e in scaled(filled(120, 0), 60.0)] == [2.0]
