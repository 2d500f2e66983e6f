"""Where operations run: the CPU, or a virtual device that computes and then sleeps to a figure.

The virtual device is the honest way to show a schedule on a machine with fewer cores than nodes:
the arithmetic is real, the duration of an operation is given, and an operation that took longer
than its figure is counted as an overrun and reported.
"""

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, TypeVar

from bamboo.config.tree import ClusterConfig

T = TypeVar("T")
COMPUTING = frozenset({"F", "B", "FR", "BR"})
"""Operations that change no state: the device may send what it holds while it runs them."""
_PR_SET_TIMERSLACK = 29
"""From prctl(2) of Linux."""


class Device(Protocol):
    """Runs one operation of a kind (F, B, FR, BR, X, S, R) on a stage."""

    overruns: int
    busy_s: dict[str, float]
    meanwhile: Callable[[float], bool] | None
    """Called with a time by time.perf_counter() when an operation of COMPUTING leaves the host with
    nothing to do until then. The operation lasts until the call returns. The call returns true when
    it has itself waited until that time."""

    def run(self, kind: str, stage: int, work: Callable[[], T]) -> T: ...

    def lay_out(self, cut: Sequence[int]) -> None:
        """Set the stages: from now on stage p has the layers cut[p] to cut[p + 1]."""


@dataclass(slots=True, kw_only=True)
class Cpu:
    """Runs operations on the host, which take as long as they take."""

    overruns: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)
    meanwhile: Callable[[float], bool] | None = None

    def run(self, kind: str, stage: int, work: Callable[[], T]) -> T:
        del stage
        start_s = time.perf_counter()
        out = work()
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + time.perf_counter() - start_s
        return out

    def lay_out(self, cut: Sequence[int]) -> None:
        """Does nothing: no duration here depends on the cut."""


@dataclass(slots=True, kw_only=True)
class VirtualDevice:
    """Makes each operation last as long as its figure: `layers_s` has seconds by kind and layer."""

    layers_s: Mapping[str, Sequence[float]]
    figures_s: dict[tuple[str, int], float] = field(default_factory=dict)
    overruns: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)
    meanwhile: Callable[[float], bool] | None = None

    def run(self, kind: str, stage: int, work: Callable[[], T]) -> T:
        start_s = time.perf_counter()
        out = work()
        figure_s = self.figures_s.get((kind, stage))
        if figure_s is not None:
            self._wait(start_s + figure_s, kind)
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + time.perf_counter() - start_s
        return out

    def _wait(self, until_s: float, kind: str) -> None:
        meanwhile = self.meanwhile if kind in COMPUTING else None
        if meanwhile is not None and time.perf_counter() < until_s and meanwhile(until_s):
            return
        left_s = until_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        else:
            self.overruns += 1

    def lay_out(self, cut: Sequence[int]) -> None:
        self.figures_s = {
            (kind, stage): sum(figures[first:stop])
            for kind, figures in self.layers_s.items()
            for stage, (first, stop) in enumerate(pairwise(cut))
        }


def per_stage(figures: tuple[float, ...], stages: int) -> tuple[float, ...]:
    """One figure for each stage, from one figure for all stages or one for each."""
    return figures * stages if len(figures) == 1 else figures


def device_of(cluster: ClusterConfig, cut: Sequence[int], speed: float = 1.0) -> Device:
    """The device that `[cluster] device` names. Its figures are for stages of `cut`: each layer
    takes an equal part of its stage's figure. A virtual device takes 1 / `speed` of the figures."""
    if cluster.device == "cpu":
        return Cpu()
    forward = _per_layer(per_stage(cluster.virtual_forward_ms, cluster.stages), cut)
    backward = _per_layer(per_stage(cluster.virtual_backward_ms, cluster.stages), cut)
    layers_s = {"F": forward, "FR": forward, "B": backward, "BR": backward}
    device = VirtualDevice(
        layers_s={kind: [x / speed for x in figures] for kind, figures in layers_s.items()}
    )
    device.lay_out(cut)
    _sleep_exactly()
    return device


def _sleep_exactly() -> None:
    """Let this thread's sleeps end on time: the kernel may otherwise add 50 us to each to save
    power. Does nothing on systems other than Linux."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1))


def _per_layer(figures_ms: Sequence[float], cut: Sequence[int]) -> list[float]:
    out: list[float] = []
    for figure_ms, (first, stop) in zip(figures_ms, pairwise(cut), strict=True):
        out += [figure_ms / 1e3 / (stop - first)] * (stop - first)
    return out
