"""The virtual device: an operation lasts its figure behind those before it, and the host runs
ahead."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from bamboo.config.tree import ClusterConfig
from bamboo.runtime.device import virtual as room
from bamboo.runtime.device.devices import device_of
from bamboo.runtime.device.virtual import VirtualDevice

FIGURE_S = 0.5
BEGIN_S = 10.0


class Clock:
    """Passes when it is slept by."""

    def __init__(self) -> None:
        self.now_s = BEGIN_S

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        assert for_s > 0
        self.now_s += for_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(room, "time", SimpleNamespace(sleep=found.sleep))
    return found


@pytest.fixture
def virtual(clock: Clock) -> VirtualDevice:
    kinds = ("F", "B", "FR", "BR")
    found = VirtualDevice(clock=clock, layers_s={kind: [FIGURE_S] for kind in kinds})
    found.lay_out((0, 1))
    return found


def taking(clock: Clock, seconds: float) -> Callable[[], None]:
    return lambda: clock.sleep(seconds)


def test_two_operations_are_issued_ahead_and_redundant_ones_wait(
    virtual: VirtualDevice, clock: Clock
) -> None:
    assert virtual.run("F", 0, lambda: 7) == 7
    assert virtual.accepts("B")
    assert not virtual.accepts("FR")
    virtual.run("B", 0, lambda: None)
    assert clock.now_s == BEGIN_S, "the host waits for nothing"
    assert not virtual.accepts("F")
    clock.now_s = BEGIN_S + FIGURE_S
    assert virtual.accepts("F")
    assert not virtual.accepts("R")
    clock.now_s = BEGIN_S + 2 * FIGURE_S
    assert virtual.accepts("R")
    assert virtual.accepts("BR")


def test_a_copy_is_ready_when_the_operation_that_made_it_is_done(
    virtual: VirtualDevice, clock: Clock
) -> None:
    copies = []
    for kind in ("F", "B"):
        clock.sleep(FIGURE_S / 4)
        virtual.run(kind, 0, lambda: None)
        copies.append(virtual.fetch([torch.ones(1)]))
    state = virtual.fetch([torch.ones(1)], at_rest=True)
    first_s = BEGIN_S + FIGURE_S / 4 + FIGURE_S
    stands = [(first_s - 1e-9, 0), (first_s, 1), (first_s + FIGURE_S - 1e-9, 1)]
    for now_s, ready in [*stands, (first_s + FIGURE_S, 2)]:
        clock.now_s = now_s
        assert sum(copy.ready() for copy in copies) == ready
        assert state.ready()
    assert virtual.fetch([torch.ones(1)]).ready()


@pytest.mark.parametrize("kind", ["X", "S", "R"])
def test_what_changes_state_begins_with_an_idle_device(
    virtual: VirtualDevice, clock: Clock, kind: str
) -> None:
    virtual.run("F", 0, lambda: None)
    virtual.run("B", 0, lambda: None)
    virtual.run(kind, 0, taking(clock, 0.1))
    assert clock.now_s == BEGIN_S + 2 * FIGURE_S + 0.1
    assert virtual.accepts(kind)


def test_arithmetic_within_the_figure_takes_no_time_of_the_device(
    virtual: VirtualDevice, clock: Clock
) -> None:
    virtual.run("F", 0, taking(clock, FIGURE_S / 2))
    virtual.run("B", 0, taking(clock, 1.25 * FIGURE_S))  # it begins at 1 and is issued at 0.5
    virtual.settle()
    assert clock.now_s == BEGIN_S + 2 * FIGURE_S
    assert virtual.overruns == 0
    assert virtual.busy_s == {"F": FIGURE_S, "B": FIGURE_S}


def test_arithmetic_beyond_the_figure_is_an_overrun(virtual: VirtualDevice, clock: Clock) -> None:
    virtual.run("F", 0, taking(clock, 1.5 * FIGURE_S))
    virtual.settle()
    assert clock.now_s == BEGIN_S + 1.5 * FIGURE_S
    assert virtual.overruns == 1
    assert virtual.busy_s == {"F": 1.5 * FIGURE_S}


def test_a_backward_that_computes_its_layers_again_lasts_longer() -> None:
    """20 ms a forward and 40 a backward, of stages of two layers; the last one is left out."""

    def figures_s(recompute: str) -> dict[tuple[str, int], float]:
        cluster = ClusterConfig(device="virtual", stages=2, recompute=recompute)
        device = device_of(cluster, (0, 2, 4))
        assert isinstance(device, VirtualDevice)
        return device.figures_s

    off, layer = figures_s("off"), figures_s("layer")
    assert {key: layer[key] for key in off if key[0].startswith("F")} == pytest.approx(
        {key: 0.02 for key in off if key[0].startswith("F")}
    )
    for kind in ("B", "BR"):
        assert [off[kind, stage] for stage in range(2)] == pytest.approx([0.04, 0.04])
        assert [layer[kind, stage] for stage in range(2)] == pytest.approx([0.06, 0.05])
