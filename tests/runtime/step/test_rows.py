"""Rows of a gradient: what comes back has every bit that was sent."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bamboo.runtime.step.rows import ROWS, densities, packed, touched, unpacked

ODD = (
    "00000000",  # +0.0
    "80000000",  # -0.0
    "00000001",  # the least denormal, and its negative
    "80000001",
    "7f800000",  # both infinities
    "ff800000",
    "7fc00000",  # several NaNs, one of which signals
    "7fc00001",
    "ffc12345",
    "7f800001",
)


def of_bits(shown: str) -> float:
    return torch.tensor(int.from_bytes(bytes.fromhex(shown), signed=True), dtype=torch.int32).view(
        torch.float32
    )


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


@given(st.integers(0, 9), st.integers(0, 7), st.integers(0, 10_000))
def test_every_bit_comes_back(count: int, width: int, seed: int) -> None:
    draw, table = random.Random(seed), torch.zeros(count, width)
    odd = torch.stack([*map(of_bits, ODD)])
    for row in range(count):
        if draw.random() < 0.3:
            table[row] = odd[[draw.randrange(len(odd)) for _ in range(width)]]
    flat = torch.cat((torch.ones(1), table.flatten()))[1:]  # no row of it is aligned
    sent, how = packed([flat, table], [width, 0])
    back, whole = unpacked(sent, how)
    assert bits(back.reshape(count, width)).equal(bits(table))
    assert whole is table
    if count and width:
        assert touched(table).equal((bits(table) != 0).any(1))
    assert sum(t.nbytes for t in sent) <= 2 * table.nbytes


@pytest.mark.parametrize("shown", ODD)
def test_a_row_with_one_bit_set_is_sent(shown: str) -> None:
    table = torch.zeros(20, 3)
    table[7, 1] = of_bits(shown)
    sent, how = packed([table.flatten()], [3])
    assert how == {ROWS: [[0, 20, 3]]}
    expected = [] if shown == "00000000" else [7]
    assert sent[0].tolist() == expected
    assert densities([table]) == [len(expected) / 20]


def test_rows_that_do_not_fit_what_is_said_of_them_are_refused() -> None:
    sent, how = packed([torch.eye(20)[:, :4].flatten()], [4])
    assert ROWS in how
    for tensors in ([sent[0][1:], sent[1]], [sent[0], sent[1][:, 1:]]):
        with pytest.raises(ValueError, match=r"are no \d rows of 4"):
            unpacked(tensors, how)
