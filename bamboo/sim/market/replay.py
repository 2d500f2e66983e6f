"""Plays a trace on a small cluster: when each seat is lost, and when it is filled again.

Rule: a pure function of the trace and four figures. The first `seats` nodes of the trace are
admitted; later ones wait in the order in which they came. When an admitted node goes, its seat is
preempted, and the node that has waited longest takes the seat after `boot_s` on the scaled clock. A
node that goes while it waits or boots has no effect.
"""

import heapq
from collections import deque
from dataclasses import dataclass

from bamboo.sim.market.trace import Trace

BOOT_S = 45.0
"""Instance creation in the published simulator (Thorpe et al., Bamboo, NSDI 2023)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatEvent:
    """At `at_s` of the scaled clock, seat number `seat` is filled, or its node is preempted."""

    at_s: float
    seat: int
    filled: bool


def replay(
    trace: Trace,
    *,
    seats: int,
    time_scale: float,
    boot_s: float = BOOT_S,
    until_s: float | None = None,
) -> tuple[SeatEvent, ...]:
    """The events of the seats, in order of time; losses come first at one time.

    `time_scale` > 1 plays faster; `boot_s` and `until_s` (the end of the replay) are seconds of the
    trace. Raises ValueError unless seats and time_scale are above 0.
    """
    if seats < 1 or time_scale <= 0:
        raise ValueError(f"{seats} seats at a scale of {time_scale} make no replay")
    free = deque(range(seats))
    seat_of: dict[str, int] = {}
    waiting: deque[str] = deque()
    booting: list[tuple[float, int, str, int]] = []
    out: list[SeatEvent] = []
    order = 0

    def fill(now_s: float) -> None:
        nonlocal order
        while free and waiting:
            node, seat = waiting.popleft(), free.popleft()
            # Nodes at the beginning of the trace are up; all others have to boot.
            delay_s = boot_s if now_s > 0 else 0.0
            heapq.heappush(booting, (now_s + delay_s, order, node, seat))
            order += 1

    def boot(until: float) -> None:
        while booting and booting[0][0] <= until:
            at_s, _, node, seat = heapq.heappop(booting)
            seat_of[node] = seat
            out.append(SeatEvent(at_s=at_s / time_scale, seat=seat, filled=True))

    end_s = trace.length_s if until_s is None else min(until_s, trace.length_s)
    for event in trace.events:
        if event.at_s > end_s:
            break
        boot(event.at_s)
        if event.comes:
            waiting.append(event.node)
            fill(event.at_s)
        elif event.node in seat_of:
            seat = seat_of.pop(event.node)
            out.append(SeatEvent(at_s=event.at_s / time_scale, seat=seat, filled=False))
            free.append(seat)
            fill(event.at_s)
        elif event.node in waiting:
            waiting.remove(event.node)
        else:
            _cancel(booting, event.node, free)
            fill(event.at_s)
    boot(end_s)
    return tuple(out)


def _cancel(booting: list[tuple[float, int, str, int]], node: str, free: deque[int]) -> None:
    """A node goes before it has booted, so its seat is free again."""
    for index, (_, _, name, seat) in enumerate(booting):
        if name == node:
            del booting[index]
            heapq.heapify(booting)
            free.append(seat)
            return
