"""Progress between two changes: straight, and the same whether anybody looks or not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.errors import CoreMisuse
from bamboo.sim.boundaries import Boundaries
from bamboo.sim.kernel import Kernel
from bamboo.sim.progress import Progress


def test_rates_delays_and_restores_add_up() -> None:
    kernel = Kernel()
    progress = Progress(kernel)
    assert progress.steps == 0
    assert math.isinf(progress.reaches_at_s(1))
    progress.run(2.0)
    kernel.run(until_s=10.0)
    assert progress.steps == 5
    progress.delay(3.0)
    assert progress.reaches_at_s(6) == 15.0
    kernel.run(until_s=12.0)
    progress.delay(1.0)
    assert progress.reaches_at_s(6) == 16.0, "a delay is prolonged"
    kernel.run(until_s=17.0)
    assert progress.steps == 6.5
    progress.run(1.0)
    assert progress.reaches_at_s(7) == 17.5, "what is left of a step goes at the new rate"
    progress.back_to(4)
    assert (progress.steps, progress.lost_steps) == (4, 2)
    progress.stand()
    kernel.run(until_s=99.0)
    assert progress.steps == 4
    assert progress.trained_s == 13.0


def test_delays_of_different_pipelines_pass_beside_one_another() -> None:
    kernel = Kernel()
    progress = Progress(kernel)
    progress.run(1.0)
    kernel.run(until_s=10.0)
    progress.delay(3.0, of=0)
    progress.delay(2.0, of=1)
    assert progress.reaches_at_s(11) == 14.0, "until the latest of them"
    progress.delay(2.0, of=1)
    assert progress.reaches_at_s(11) == 15.0, "a second one of the same pipeline adds"
    progress.delay(1.0, of=0)
    assert progress.reaches_at_s(11) == 15.0
    progress.delay(1.0)
    assert progress.reaches_at_s(11) == 16.0, "one of all comes after them"
    progress.delay(1.0, of=0)
    assert progress.reaches_at_s(11) == 17.0, "and before what a pipeline does next"
    progress.pause(5.0)
    assert progress.reaches_at_s(11) == 17.0, "a pause passes beside all of them"
    progress.pause(8.0)
    assert progress.reaches_at_s(11) == 19.0
    kernel.run(until_s=20.0)
    assert (progress.steps, progress.trained_s) == (12.0, 12.0)
    progress.delay(1.0, of=1)
    assert progress.reaches_at_s(13) == 22.0, "what has passed does not count"


def test_what_was_done_at_an_instant_before() -> None:
    kernel = Kernel()
    progress = Progress(kernel)
    progress.run(2.0)
    kernel.run(until_s=10.0)
    progress.delay(3.0)
    kernel.run(until_s=15.0)
    assert [progress.was(at_s) for at_s in (-1.0, 0.0, 4.0, 10.0, 12.5, 14.0, 15.0)] == [
        *(0.0, 0.0, 2.0, 5.0, 5.0, 5.5, 6.0)
    ]
    progress.run(1.0)
    kernel.run(until_s=16.0)
    assert [progress.was(at_s) for at_s in (12.5, 14.0, 15.5)] == [5.0, 5.5, 6.5]
    progress.back_to(4)
    assert progress.was(15.5) == 6.5, "it is what was done then"


def test_the_last_step_is_the_last() -> None:
    kernel = Kernel()
    progress = Progress(kernel, last_step=3)
    progress.run(1.0)
    kernel.run(until_s=9.0)
    assert progress.steps == 3


def test_a_step_takes_some_time() -> None:
    with pytest.raises(CoreMisuse, match="cannot take 0"):
        Progress(Kernel()).run(0.0)


@given(st.lists(st.tuples(st.floats(0.01, 50.0), st.floats(0.1, 9.0)), min_size=1, max_size=8))
def test_looking_changes_nothing(pieces: list[tuple[float, float]]) -> None:
    """`steps` at any instant is the sum of its pieces, however often it is asked for."""
    kernel = Kernel()
    progress = Progress(kernel)
    done = 0.0
    for length_s, step_s in pieces:
        progress.run(step_s)
        kernel.run(until_s=kernel.now_s + length_s / 2)
        assert progress.steps >= done
        kernel.run(until_s=kernel.now_s + length_s / 2)
        done += length_s / step_s
        assert progress.steps == pytest.approx(done, rel=1e-9, abs=1e-9)


def test_what_waits_for_a_boundary_moves_with_the_pace() -> None:
    kernel = Kernel()
    progress = Progress(kernel)
    boundaries = Boundaries(kernel, progress)
    seen: list[tuple[str, float]] = []
    boundaries.when_next(lambda: seen.append(("next", kernel.now_s)))
    boundaries.when(3, lambda: seen.append(("third", kernel.now_s)))
    kernel.run(until_s=5.0)
    assert seen == [], "nobody trains"
    progress.run(2.0)
    kernel.run(until_s=8.0)
    assert seen == [("next", 7.0)]
    progress.run(4.0)
    kernel.run(until_s=30.0)
    assert seen[1:] == [("third", 14.0)]
    boundaries.when(1, lambda: seen.append(("passed", kernel.now_s)))
    kernel.run(until_s=31.0)
    assert seen[-1] == ("passed", 30.0)


def test_nothing_comes_after_the_last_step() -> None:
    kernel = Kernel()
    progress = Progress(kernel, last_step=3)
    progress.run(2.0)
    assert (progress.reaches_at_s(3), progress.reaches_at_s(4)) == (6.0, math.inf)


def test_a_step_that_is_not_quite_done_ends_now_at_the_earliest() -> None:
    kernel = Kernel()
    progress = Progress(kernel)
    progress.run(0.95)
    for number in range(1, 2000):
        kernel.run(until_s=progress.reaches_at_s(number))
        assert progress.reaches_at_s(number) >= kernel.now_s
