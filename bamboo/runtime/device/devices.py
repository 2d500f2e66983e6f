"""Where operations run: the CPU, a CUDA GPU, or a virtual device with given times."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import add
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from bamboo.config.tree import ClusterConfig
from bamboo.errors import CoreMisuse
from bamboo.runtime.device.cuda import Cuda
from bamboo.runtime.device.lagging import Lagging
from bamboo.runtime.device.staging import OnHost, Staged, place_of
from bamboo.runtime.device.virtual import VirtualDevice
from bamboo.topology.strategy import AUTO

T = TypeVar("T")


class Device(Protocol):
    """Runs one operation of a kind (F, B, FR, BR, X, S, R, E, V) on a stage."""

    overruns: int
    busy_s: dict[str, float]
    place: torch.device
    """Where parameters, gradients and the tensors between stages lie."""

    def run(self, kind: str, stage: int, work: Callable[[], T], layers: range | None = None) -> T:
        """Issue an operation, or the part of it that these layers (global indices) are. One that
        changes state, or reads a number, is done when this returns; any other may still be
        running."""

    def accepts(self, kind: str) -> bool:
        """Whether an operation of this kind may be issued now; where not, `wake` (`woken_by`) is
        called when that may have changed."""

    def put(self, tensors: Sequence[Tensor], after: Staged | None = None) -> tuple[Tensor, ...]:
        """These tensors at `place`, in allocations of their own unless they lie there already.
        `after`: the tensors are those of this copy, which may still be under way."""

    def fetch(self, tensors: Sequence[Tensor], *, at_rest: bool = False) -> Staged:
        """Begin to copy these tensors to the host's memory, as they are once all operations that
        were issued so far are done. `at_rest`: none of those writes them, so the copy need not wait
        for any."""

    def settle(self) -> None:
        """Wait until all that was issued is done, copies included."""

    def woken_by(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from another thread, whenever an operation or a copy is done."""

    def lay_out(self, cut: Sequence[int]) -> None:
        """Set the stages: from now on stage p has the layers cut[p] to cut[p + 1]."""

    def memory(self) -> dict[str, int]:
        """Bytes of the device's own memory as its allocator counts them, by name; {} on the
        host."""


class _Synchronous:
    """The part of a device that has no queue: all is done when a call returns, on the host."""

    place = torch.device("cpu")

    def accepts(self, kind: str) -> bool:
        """Always."""
        del kind
        return True

    def put(self, tensors: Sequence[Tensor], after: Staged | None = None) -> tuple[Tensor, ...]:
        """The tensors themselves."""
        del after
        return tuple(tensors)

    def fetch(self, tensors: Sequence[Tensor], *, at_rest: bool = False) -> Staged:
        """The tensors themselves."""
        del at_rest
        return OnHost(tuple(tensors))

    def settle(self) -> None:
        """Nothing is under way."""

    def woken_by(self, wake: Callable[[], None]) -> None:
        """Nobody ever waits."""

    def memory(self) -> dict[str, int]:
        """Nothing."""
        return {}


@dataclass(kw_only=True)
class Cpu(_Synchronous):
    """Runs operations on the host, which take as long as they take."""

    overruns: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)

    def run(self, kind: str, stage: int, work: Callable[[], T], layers: range | None = None) -> T:
        del stage, layers
        start_s = time.perf_counter()
        out = work()
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + time.perf_counter() - start_s
        return out

    def lay_out(self, cut: Sequence[int]) -> None:
        """Does nothing: no duration here depends on the cut."""


def per_stage(figures: tuple[float, ...], stages: int) -> tuple[float, ...]:
    """One figure for each stage, from one figure for all stages or one for each."""
    return figures * stages if len(figures) == 1 else figures


def device_of(cluster: ClusterConfig, cut: Sequence[int], speed: float = 1.0) -> Device:
    """The device that `[cluster] device` names. Its figures are for stages of `cut`: each layer
    takes an equal part of its stage's figure. A virtual device takes 1 / `speed` of the figures."""
    if cluster.device == "cpu":
        return Cpu()
    if cluster.device == "cuda":
        return Cuda(place_of(cluster))
    if cluster.device == "lagging":
        return Lagging()
    if cluster.device == AUTO:
        raise CoreMisuse("cluster.device is 'auto': settle it before anything computes")
    forward = _per_layer(per_stage(cluster.virtual_forward_ms, cluster.stages), cut)
    backward = _per_layer(per_stage(cluster.virtual_backward_ms, cluster.stages), cut)
    if cluster.recomputes:  # all but the model's last one are computed again
        backward = [*map(add, forward[:-1], backward), backward[-1]]
    layers_s = {"F": forward, "FR": forward, "E": forward, "B": backward, "BR": backward}
    device = VirtualDevice(
        layers_s={kind: [x / speed for x in figures] for kind, figures in layers_s.items()}
    )
    device.lay_out(cut)
    return device


def _per_layer(figures_ms: Sequence[float], cut: Sequence[int]) -> list[float]:
    out: list[float] = []
    for figure_ms, (first, stop) in zip(figures_ms, pairwise(cut), strict=True):
        out += [figure_ms / 1e3 / (stop - first)] * (stop - first)
    return out
