"""Where operations run: the CPU, or a virtual device that computes and then sleeps to a figure.

The virtual device is the honest way to show a schedule on a machine with fewer cores than nodes:
the arithmetic is real, the duration of an operation is given, and an operation that took longer
than its figure is counted as an overrun and reported.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from bamboo.config.tree import ClusterConfig

T = TypeVar("T")


class Device(Protocol):
    """Runs one operation of a kind (F, B, FR, BR, X, S, R) on a stage."""

    overruns: int
    busy_s: dict[str, float]

    def run(self, kind: str, stage: int, work: Callable[[], T]) -> T: ...


@dataclass(slots=True, kw_only=True)
class Cpu:
    """Operations take what they take."""

    overruns: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)

    def run(self, kind: str, stage: int, work: Callable[[], T]) -> T:
        del stage
        start_s = time.perf_counter()
        out = work()
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + time.perf_counter() - start_s
        return out


@dataclass(slots=True, kw_only=True)
class VirtualDevice:
    """Sleeps each operation to its figure in seconds, by (kind, stage)."""

    figures_s: Mapping[tuple[str, int], float]
    overruns: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)

    def run(self, kind: str, stage: int, work: Callable[[], T]) -> T:
        start_s = time.perf_counter()
        out = work()
        figure_s = self.figures_s.get((kind, stage))
        if figure_s is not None:
            left_s = figure_s - (time.perf_counter() - start_s)
            if left_s > 0:
                time.sleep(left_s)
            else:
                self.overruns += 1
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + time.perf_counter() - start_s
        return out


def per_stage(figures: tuple[float, ...], stages: int) -> tuple[float, ...]:
    """One figure for each stage from one for all or one for each."""
    return figures * stages if len(figures) == 1 else figures


def device_of(cluster: ClusterConfig) -> Device:
    """The device that `[cluster] device` names."""
    if cluster.device == "cpu":
        return Cpu()
    forward = per_stage(cluster.virtual_forward_ms, cluster.stages)
    backward = per_stage(cluster.virtual_backward_ms, cluster.stages)
    figures: dict[tuple[str, int], float] = {}
    for stage in range(cluster.stages):
        figures |= {(kind, stage): forward[stage] / 1e3 for kind in ("F", "FR")}
        figures |= {(kind, stage): backward[stage] / 1e3 for kind in ("B", "BR")}
    return VirtualDevice(figures_s=figures)
