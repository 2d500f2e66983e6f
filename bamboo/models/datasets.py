"""Data of a job from a dataset as torch has them: one that has a length and is indexed.

Rule: all that a sample draws follows from its key, so that it is the same on every node.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from bamboo.data.dataset import Data, Tensors
from bamboo.errors import InputError
from bamboo.models.draws import keyed_draws

MOST_HASHED = 10_000
"""The samples of a dataset that are all made for its digest, if it is given none."""


def data_of(dataset: Any, *, unit: str = "sample", digest: str = "", targets: int = 1) -> Data:
    """What a job trains on, or is evaluated on, of a `torch.utils.data.Dataset`: anything that has
    a length and gives a tuple of tensors, arrays or numbers for each index. The last `targets` of
    them are handed to the loss, the others to the first layer.

    Samples are stacked as `torch.utils.data.default_collate` stacks them. What the dataset draws
    for a sample, from the generators of torch, Python or NumPy, follows from the sample's key.
    `digest` names the contents. Without one, all samples are made once and hashed; of tensors in a
    `TensorDataset` that is quick. Raises InputError for a dataset without a length, with more than
    10,000 samples and no digest, or with samples of another form.
    """
    return _OfDataset(dataset, unit=unit, digest=digest, targets=targets)


class _OfDataset:
    def __init__(self, dataset: Any, *, unit: str, digest: str, targets: int) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise InputError(
                f"data_of: {type(dataset).__name__} has no length or no index; give a dataset that "
                "has both: of a DataLoader its .dataset, or a list of tuples"
            )
        self._dataset = dataset
        self._targets = targets
        self.samples = len(dataset)
        if not self.samples:
            raise InputError(
                f"data_of: {type(dataset).__name__} has no samples; look at the path that it reads"
            )
        self.unit = unit
        self.digest = digest or self._hashed()

    def batch(self, indices: Sequence[int], keys: Sequence[int]) -> tuple[Tensors, Tensors]:
        if isinstance(self._dataset, TensorDataset):
            parts = [tensor[[*indices]] for tensor in self._dataset.tensors]
        else:
            made = zip(indices, keys, strict=True)
            parts = default_collate([self._sample(index, key) for index, key in made])
        return tuple(parts[: -self._targets]), tuple(parts[-self._targets :])

    def _sample(self, index: int, key: int) -> tuple[Any, ...]:
        with keyed_draws(key):
            sample = self._dataset[index]
        if not isinstance(sample, tuple | list) or len(sample) <= self._targets:
            kind = type(sample).__name__
            size = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
            raise InputError(
                f"data_of: sample {index} is a {kind}{size}; return a tuple, the inputs first and "
                f"the targets behind them (here {self._targets})"
            )
        return tuple(sample)

    def _hashed(self) -> str:
        if isinstance(self._dataset, TensorDataset):
            return _hash_of(self._dataset.tensors)
        if self.samples > MOST_HASHED:
            raise InputError(
                f"data_of: the dataset has {self.samples:,} samples, and all of them would be made "
                "for a digest; give data_of(digest=...), such as a hash of its files or the name "
                "and release of the dataset"
            )
        return _hash_of(self._tensors())

    def _tensors(self) -> Iterator[Tensor]:
        for index in range(self.samples):
            yield from default_collate([self._sample(index, index)])


def _hash_of(tensors: Any) -> str:
    """SHA-256 of types, shapes and contents."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    return found.hexdigest()
