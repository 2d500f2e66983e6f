"""The order of samples: which samples a microbatch of a step has, by number.

Rule: it needs no data, only the number of samples; each comes once in each data epoch.
"""

import torch
from torch import Tensor

from bamboo.topology.keys import keyed_seed

PERMUTATIONS_KEPT = 2
"""A microbatch may lie across two data epochs."""


class SampleOrder:
    """The samples 0 to `samples` - 1, shuffled again for each data epoch."""

    def __init__(self, *, samples: int, batch: int, microbatch: int, seed: int) -> None:
        self.samples = samples
        """Samples in one data epoch."""
        self._batch = batch
        self._microbatch = microbatch
        self._seed = seed
        self._permutations: dict[int, Tensor] = {}

    def of(self, step: int, index: int) -> list[int]:
        """The samples of global microbatch `index` of `step`, steps counted from 0."""
        position = step * self._batch + index * self._microbatch
        end = position + self._microbatch
        out: list[int] = []
        while position < end:
            data_epoch, place = divmod(position, self.samples)
            part = self._permutation(data_epoch)[place : place + end - position]
            out += part.tolist()
            position += len(part)
        return out

    def keys_of(self, step: int, index: int) -> list[int]:
        """A key for each of these samples, which follows from seed, data epoch and sample."""
        first = step * self._batch + index * self._microbatch
        return [
            keyed_seed(self._seed, "sample", place // self.samples, sample)
            for place, sample in enumerate(self.of(step, index), first)
        ]

    def _permutation(self, data_epoch: int) -> Tensor:
        found = self._permutations.get(data_epoch)
        if found is None:
            generator = torch.Generator().manual_seed(keyed_seed(self._seed, "shuffle", data_epoch))
            found = torch.randperm(self.samples, generator=generator)
            while len(self._permutations) >= PERMUTATIONS_KEPT:
                self._permutations.pop(min(self._permutations))
            self._permutations[data_epoch] = found
        return found
