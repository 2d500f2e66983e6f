"""Signals: an exception before there is a step to finish, a count afterwards."""

import signal

import pytest

from bamboo.signals import Interrupts, held_back


def test_before_the_loop_a_signal_interrupts_once() -> None:
    interrupts = Interrupts()
    with interrupts.listening():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert interrupts.count == 2


def test_in_the_loop_signals_are_counted() -> None:
    interrupts = Interrupts()
    with interrupts.listening():
        interrupts.start_counting()
        assert interrupts.count == 0
        signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 1
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.count == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_without_anybody_waiting_is_at_once(number: signal.Signals) -> None:
    interrupts = Interrupts()
    with interrupts.listening():
        interrupts.start_counting()
        signal.raise_signal(number)
    assert interrupts.count >= 2


def test_the_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts().listening():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_waits_for_the_end_of_what_is_begun() -> None:
    begun = []

    def begin() -> None:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            begun.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert begun
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_what_fails_while_an_interrupt_is_held_back_is_what_is_said() -> None:
    def fail() -> None:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            raise OSError("not there")

    with pytest.raises(OSError, match="not there"):
        fail()
