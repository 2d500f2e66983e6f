"""Tensors between a device and the host, and where a job's tensors lie.

Rule: what leaves a node is read from the host only once the device has written it, so a copy is a
value that says whether it is ready.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bamboo.config.tree import ClusterConfig
from bamboo.data.dataset import Dataset
from bamboo.data.evaluation import EvalData
from bamboo.errors import NoDevice
from bamboo.runtime.device.nvidia_driver import no_gpu

HOST = torch.device("cpu")


class Staged(Protocol):
    """A copy of tensors in the host's memory."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The copies; their contents mean nothing before `ready`."""

    def ready(self) -> bool:
        """Whether the copy is complete. It never waits."""


@dataclass(frozen=True, slots=True)
class OnHost:
    """Tensors that lie on the host already."""

    tensors: tuple[Tensor, ...]

    def ready(self) -> bool:
        """Always."""
        return True


class DataOnDevice:
    """The microbatches of a data set, put on a device by `put`."""

    def __init__(self, data: Dataset, put: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> None:
        self._data = data
        self._put = put

    def microbatch(self, step: int, index: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """(inputs, targets) of the global microbatch `index` of `step`."""
        inputs, targets = self._data.microbatch(step, index)
        put = tuple(self._put([*inputs, *targets]))
        return put[: len(inputs)], put[len(inputs) :]

    def count(self, step: int) -> int:
        """What all samples of a step weigh together."""
        return self._data.count(step)


class EvalOnDevice:
    """The microbatches of an evaluation, put on a device by `put`."""

    def __init__(self, data: EvalData, put: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> None:
        self._data = data
        self._put = put

    def inputs(self, index: int) -> tuple[Tensor, ...]:
        """Of the microbatch with this global index."""
        return tuple(self._put(self._data.microbatch(index)[0]))

    def targets(self, index: int) -> tuple[Tensor, ...]:
        """Of the same microbatch."""
        return tuple(self._put(self._data.microbatch(index)[1]))


def data_at(data: Dataset, place: torch.device) -> DataOnDevice:
    """The data set with its microbatches at `place`, for code that waits for each copy."""
    return DataOnDevice(data, lambda tensors: [tensor.to(place) for tensor in tensors])


def place_of(cluster: ClusterConfig) -> torch.device:
    """Where a job computes: the CPU, which a virtual device uses too, or the first GPU. Raises
    NoDevice where the job wants a GPU and torch sees none."""
    if cluster.device != "cuda":
        return torch.device("cpu")
    with warnings.catch_warnings(action="ignore"):  # torch says in many lines what is said below
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
    raise NoDevice(*no_gpu(torch=str(torch.__version__), cuda=torch.version.cuda or ""))
