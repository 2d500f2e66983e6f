"""The virtual device: an operation takes its figure, and the host may use what is left of it."""

import time

from bamboo.runtime.device import VirtualDevice

FIGURE_S = 0.05


def device() -> VirtualDevice:
    found = VirtualDevice(layers_s={"F": [FIGURE_S]})
    found.lay_out((0, 1))
    return found


def test_the_host_may_use_what_an_operation_leaves_it() -> None:
    found, given = device(), []
    found.meanwhile = given.append
    begun_s = time.perf_counter()
    assert found.run("F", 0, lambda: 7) == 7
    assert time.perf_counter() - begun_s >= FIGURE_S
    (until_s,) = given
    assert until_s - begun_s >= FIGURE_S
    assert found.overruns == 0


def test_whoever_is_back_late_makes_the_operation_longer_and_it_is_no_overrun() -> None:
    found = device()
    found.meanwhile = lambda until_s: time.sleep(until_s + 0.01 - time.perf_counter())
    begun_s = time.perf_counter()
    found.run("F", 0, lambda: None)
    assert time.perf_counter() - begun_s >= FIGURE_S + 0.01
    assert found.overruns == 0


def test_an_operation_that_takes_longer_leaves_nothing() -> None:
    found, given = device(), []
    found.meanwhile = given.append
    found.run("F", 0, lambda: time.sleep(1.1 * FIGURE_S))
    found.run("S", 0, lambda: None)
    assert given == []
    assert found.overruns == 1
