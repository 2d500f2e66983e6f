"""How long the hot loop waits for messages, where it has nothing to do."""

from collections.abc import Callable

import pytest

from bamboo.runtime.step.executor import CALM_POLL_S, POLL_S, Executor
from tests.runtime.step.test_executor import S0, Bench


@pytest.mark.parametrize(
    ("told", "waits_s"),
    [
        (lambda executor: None, CALM_POLL_S),
        (lambda executor: executor.hold_steps(True), POLL_S),
        (lambda executor: executor.freeze(), POLL_S),
        (lambda executor: executor.stop_after(7), POLL_S),
        (lambda executor: executor.stand_still({S0}), POLL_S),
        (lambda executor: executor.release(S0), POLL_S),
        (lambda executor: executor.ask(background=lambda: True), POLL_S),
    ],
)
def test_what_only_a_message_can_change_is_looked_at_less_often(
    told: Callable[[Executor], object], waits_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, waited = Bench(0), []
    honest = bench.mailbox.collect

    def collect(timeout_s: float) -> int:
        waited.append(timeout_s)
        return honest(timeout_s)

    monkeypatch.setattr(bench.mailbox, "collect", collect)
    told(bench.executor)
    ran = bench.go()
    assert waited == [0.0] * (len(ran) + 1) + [waits_s]


def test_who_lingers_looks_around_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, waited = Bench(0), []
    bench.go()
    bench.leaving = False
    monkeypatch.setattr(bench.mailbox, "collect", lambda timeout_s: waited.append(timeout_s) or 0)
    bench.executor.run(linger=True)
    assert waited == [0.0, POLL_S]
