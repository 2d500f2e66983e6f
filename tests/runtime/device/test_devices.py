"""The virtual device: an operation takes its figure, and the host may use what is left of it."""

import pytest

from bamboo.runtime.device import devices
from bamboo.runtime.device.devices import VirtualDevice

FIGURE_S = 0.5


class Clock:
    """Stands where the module `time` does; passes when it is waited for."""

    def __init__(self) -> None:
        self.now_s = 10.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        assert for_s > 0
        self.now_s += for_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(devices, "time", found)
    return found


@pytest.fixture
def virtual(clock: Clock) -> VirtualDevice:
    found = VirtualDevice(layers_s={"F": [FIGURE_S]})
    found.lay_out((0, 1))
    return found


def test_the_host_may_use_what_an_operation_leaves_it(virtual: VirtualDevice, clock: Clock) -> None:
    begun_s, given = clock.now_s, []

    def host(until_s: float) -> bool:
        given.append(until_s)
        clock.now_s += FIGURE_S / 2
        return False

    def work() -> int:
        clock.now_s += FIGURE_S / 4
        return 7

    virtual.meanwhile = host
    assert virtual.run("F", 0, work) == 7
    assert given == [begun_s + FIGURE_S]
    assert clock.now_s == begun_s + FIGURE_S
    assert virtual.overruns == 0


@pytest.mark.parametrize(
    ("kind", "serves"), [("B", True), ("FR", True), ("S", False), ("R", False)]
)
def test_nobody_is_served_while_a_state_changes(clock: Clock, kind: str, serves: bool) -> None:
    virtual = VirtualDevice(layers_s={kind: [FIGURE_S]})
    virtual.lay_out((0, 1))
    given: list[float] = []
    virtual.meanwhile = lambda until_s: bool(given.append(until_s))
    begun_s = clock.now_s
    virtual.run(kind, 0, lambda: None)
    assert bool(given) is serves
    assert clock.now_s == begun_s + FIGURE_S


def test_a_host_that_has_waited_itself_is_not_late(virtual: VirtualDevice, clock: Clock) -> None:
    virtual.meanwhile = lambda until_s: not clock.sleep(1.001 * FIGURE_S)
    virtual.run("F", 0, lambda: None)
    assert virtual.overruns == 0


def test_a_host_that_is_back_late_is_an_overrun(virtual: VirtualDevice, clock: Clock) -> None:
    begun_s = clock.now_s
    virtual.meanwhile = lambda until_s: bool(clock.sleep(1.5 * FIGURE_S))
    virtual.run("F", 0, lambda: None)
    assert clock.now_s == begun_s + 1.5 * FIGURE_S
    assert virtual.overruns == 1


def test_an_operation_that_takes_longer_leaves_nothing(
    virtual: VirtualDevice, clock: Clock
) -> None:
    given: list[float] = []
    virtual.meanwhile = lambda until_s: bool(given.append(until_s))
    virtual.run("F", 0, lambda: clock.sleep(1.1 * FIGURE_S))
    virtual.run("S", 0, lambda: None)
    assert given == []
    assert virtual.overruns == 1
