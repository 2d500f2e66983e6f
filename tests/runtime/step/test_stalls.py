"""When a node says that nothing moves, in spite of what."""

import time

from bamboo.runtime.step.executor import POLL_S, Interrupted
from tests.runtime.step.test_executor import Bench


def test_decisions_that_move_nothing_do_not_hide_that_nothing_moves() -> None:
    bench, calls = Bench(1, stall_s=0.05), 0
    bench.at_idle = lambda: None

    def each_time() -> bool:
        nonlocal calls
        calls += 1
        return calls % 2 == 0  # every other look: a decision about others came

    bench.executor.ask(attention=each_time)
    begin_s, causes = time.monotonic(), set()
    while "stalled" not in causes:
        left = bench.executor.run()
        assert isinstance(left, Interrupted)
        causes.add(left.cause)
        assert time.monotonic() - begin_s < 30.0, "it is never said"
    assert causes == {"attention", "stalled"}


def test_who_was_told_to_wait_has_all_his_time_again() -> None:
    bench = Bench(1, stall_s=0.2)
    turns = 0

    def held_for_long() -> None:
        nonlocal turns
        turns += 1
        bench.executor.hold_steps(time.monotonic() - begin_s < 0.4)

    bench.at_idle = held_for_long
    bench.executor.hold_steps(True)
    begin_s = time.monotonic()
    left = bench.executor.run()
    assert isinstance(left, Interrupted)
    assert left.cause == "stalled"
    assert time.monotonic() - begin_s > 0.6 - POLL_S
