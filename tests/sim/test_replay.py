"""A trace on few seats: what is lost was there, and is filled again by whoever waited longest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.sim.market.replay import SeatEvent, replay
from bamboo.sim.market.trace import Trace, TraceEvent


def trace(*events: tuple[float, str]) -> Trace:
    """Events as `(seconds, "+a")`, `(seconds, "-a")`."""
    made = tuple(TraceEvent(at_s=at, node=who[1:], comes=who[0] == "+") for at, who in events)
    return Trace(source="test", events=made, length_s=made[-1].at_s if made else 0.0)


def told(events: tuple[SeatEvent, ...]) -> list[str]:
    return [f"{e.at_s:g} {'+' if e.filled else '-'}{e.seat}" for e in events]


def test_the_longest_waiting_takes_the_lost_seat() -> None:
    market = trace(
        (0, "+a"), (0, "+b"), (0, "+c"), (0, "+d"), (100, "-b"), (500, "-c"), (600, "-d")
    )
    assert told(replay(market, seats=2, time_scale=1)) == [
        "0 +0", "0 +1", "100 -1", "145 +1", "500 -1", "545 +1", "600 -1",
    ]  # fmt: skip


def test_the_scale_is_of_everything() -> None:
    market = trace((0, "+a"), (0, "+b"), (120, "-a"), (300, "-b"))
    assert told(replay(market, seats=1, time_scale=60)) == ["0 +0", "2 -0", "2.75 +0", "5 -0"]


def test_who_goes_while_he_waits_or_boots_is_never_seen() -> None:
    market = trace((0, "+a"), (0, "+b"), (0, "+c"), (10, "-b"), (20, "-a"), (30, "-c"), (900, "+d"))
    assert told(replay(market, seats=1, time_scale=1)) == ["0 +0", "20 -0"]


def test_it_ends_where_it_is_told_to() -> None:
    market = trace((0, "+a"), (0, "+b"), (100, "-a"), (300, "-b"))
    assert told(replay(market, seats=1, time_scale=1, until_s=120)) == ["0 +0", "100 -0"]


@pytest.mark.parametrize(("seats", "scale"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -2.0)])
def test_no_seats_or_no_time_is_no_replay(seats: int, scale: float) -> None:
    with pytest.raises(ValueError, match="make no replay"):
        replay(trace((0, "+a")), seats=seats, time_scale=scale)


@st.composite
def markets(draw: st.DrawFn) -> Trace:
    at_s, here, made = 0.0, list[str](), 0
    out: list[tuple[float, str]] = []
    for _ in range(draw(st.integers(1, 60))):
        at_s += draw(st.sampled_from([0.0, 0.0, 10.0, 44.0, 46.0, 500.0]))
        if here and draw(st.booleans()):
            node = here.pop(draw(st.integers(0, len(here) - 1)))
            out.append((at_s, f"-{node}"))
        else:
            made += 1
            here.append(f"n{made}")
            out.append((at_s, f"+n{made}"))
    return trace(*out)


@given(markets(), st.integers(1, 5), st.sampled_from([0.5, 1.0, 60.0]))
def test_seats_are_filled_and_lost_in_turn(market: Trace, seats: int, scale: float) -> None:
    events = replay(market, seats=seats, time_scale=scale)
    assert events == replay(market, seats=seats, time_scale=scale)
    assert [e.at_s for e in events] == sorted(e.at_s for e in events)
    filled: set[int] = set()
    lost_at_s: dict[int, float] = {}
    for event in events:
        assert 0 <= event.seat < seats
        assert event.filled == (event.seat not in filled)
        filled.symmetric_difference_update({event.seat})
        if not event.filled:
            lost_at_s[event.seat] = event.at_s
        elif event.seat in lost_at_s:
            assert event.at_s - lost_at_s[event.seat] >= 45.0 / scale - 1e-6
    assert sum(not e.filled for e in events) <= market.preemptions
