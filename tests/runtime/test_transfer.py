"""The state of a slot in chunks; whole transfers run in the interleavings and end to end."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from bamboo.runtime.transfer import _slice


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_chunks_put_together_are_the_whole(sizes: list[int], chunk: int) -> None:
    numbers = torch.arange(float(sum(sizes)))
    tensors = list(torch.split(numbers, sizes))
    starts = range(0, numbers.numel(), chunk)
    chunks = [_slice(tensors, at, min(at + chunk, numbers.numel())) for at in starts]
    assert torch.equal(torch.cat([torch.empty(0), *chunks]), numbers)
