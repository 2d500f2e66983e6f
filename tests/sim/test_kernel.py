"""The queue of a simulated world: order, cancelling, the end."""

import pytest

from bamboo.errors import CoreMisuse
from bamboo.sim.kernel import Kernel


def test_of_one_instant_the_least_priority_then_who_asked_first() -> None:
    kernel, seen = Kernel(), []
    for name, time_s, priority in (("c", 2.0, 0), ("b", 1.0, 1), ("d", 2.0, 0), ("a", 1.0, 0)):
        kernel.at(time_s, lambda name=name: seen.append(name), priority=priority)  # type: ignore[misc]
    kernel.run(until_s=5.0)
    assert seen == ["a", "b", "c", "d"]
    assert (kernel.now_s, kernel.events) == (5.0, 4)


def test_what_is_cancelled_does_not_happen_and_may_be_cancelled_again() -> None:
    kernel, seen = Kernel(), []
    entry = kernel.at(1.0, lambda: seen.append("x"))
    kernel.cancel(entry)
    kernel.cancel(entry)
    kernel.cancel(None)
    kernel.run(until_s=2.0)
    assert seen == []


def test_nothing_happens_in_the_past() -> None:
    kernel = Kernel()
    kernel.run(until_s=2.0)
    with pytest.raises(CoreMisuse, match="nothing happens at 1"):
        kernel.at(1.0, lambda: None)


def test_it_stops_where_it_is_over() -> None:
    kernel, seen = Kernel(), []
    for time_s in (1.0, 2.0, 3.0):
        kernel.at(time_s, lambda: seen.append(kernel.now_s))
    kernel.run(until_s=9.0, over=lambda: len(seen) == 2)
    assert seen == [1.0, 2.0]
    assert kernel.now_s == 2.0
