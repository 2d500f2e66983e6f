"""Data made of a dataset as torch has them: the order of parts, draws by key, digests, refusals."""

import random
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import TensorDataset

from bamboo.errors import InputError
from bamboo.models import data_of


class Noisy:
    """Each sample draws once from each generator."""

    def __init__(self, size: int = 5) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return torch.rand(2), numpy.random.rand(), random.random(), index


def test_a_sample_s_draws_follow_from_its_key_alone() -> None:
    data = data_of(Noisy(), unit="image")
    assert (data.samples, data.unit) == (5, "image")
    inputs, (targets,) = data.batch([3, 1], [30, 10])
    assert [tensor.shape for tensor in inputs] == [(2, 2), (2,), (2,)]
    assert targets.tolist() == [3, 1]
    before = torch.get_rng_state()
    again, _ = data.batch([1, 3, 1], [10, 30, 11])
    assert torch.equal(torch.get_rng_state(), before)
    for first, second in zip(inputs, again, strict=True):
        assert torch.equal(first[[1, 0]], second[:2])
        assert not torch.equal(second[0], second[2])
    assert data_of(Noisy()).digest == data.digest


def test_tensors_are_indexed_and_hashed_by_their_contents() -> None:
    x, y = torch.arange(6.0).view(3, 2), torch.tensor([True, False, True])
    data = data_of(TensorDataset(x, x, y), targets=2)
    (inputs,), targets = data.batch([2, 0], [1, 2])
    assert inputs.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert [one.tolist() for one in targets] == [inputs.tolist(), [True, True]]
    assert data_of(TensorDataset(x, x.clone(), y)).digest == data.digest
    for other in (TensorDataset(x, x + 1, y), TensorDataset(x, x, ~y), TensorDataset(x, x)):
        assert data_of(other).digest != data.digest
    assert data_of(TensorDataset(x, y), digest="mine").digest == "mine"


@pytest.mark.parametrize(
    ("dataset", "line"),
    [
        (iter(()), "has no length or no index; give a dataset that has both"),
        (Noisy(10_001), r"has 10,001 samples, .*; give data_of\(digest=\.\.\.\)"),
        ([{"x": 1}], "sample 0 is a dict; return a tuple, the inputs first"),
        ([(1,)], "sample 0 is a tuple of 1; return a tuple"),
    ],
)
def test_what_is_no_data_is_refused_by_name(dataset: object, line: str) -> None:
    with pytest.raises(InputError, match=line):
        data_of(dataset)
