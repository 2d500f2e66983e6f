"""The state of a slot in chunks; whole transfers run in the interleavings and end to end."""

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bamboo.runtime.wire.chunks import (
    SMALL_CHUNK,
    Copying,
    Gathering,
    copy_of,
    pieces_of,
    put_together,
    slice_of,
)

KINDS = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
"""Of state: parameters, frozen ones, counters and masks among the buffers."""


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_chunks_put_together_are_the_whole(sizes: list[int], chunk: int) -> None:
    numbers = torch.arange(float(sum(sizes)))
    tensors = list(torch.split(numbers, sizes))
    starts = range(0, numbers.numel(), chunk)
    chunks = [slice_of(tensors, at, min(at + chunk, numbers.numel())) for at in starts]
    assert torch.equal(torch.cat([torch.empty(0), *chunks]), numbers)


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    chunk=st.integers(1, 12),
    window=st.integers(1, 3),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1),
    rng=st.randoms(use_true_random=False),
)
def test_what_comes_in_any_order_lies_where_it_belongs(
    sizes: list[int], kinds: list[torch.dtype], chunk: int, window: int, rng: object
) -> None:
    state = [torch.arange(1, 1 + n).to(kinds[i % len(kinds)]) for i, n in enumerate(sizes)]
    into = [torch.zeros_like(tensor) for tensor in state]
    copying = Copying(chunk)
    copying.begin(state, 0)
    gathering = Gathering(window, into, chunk)
    asked = list(range(window))
    while (wanted := gathering.next_chunk()) is not None:
        asked.append(wanted)
    parts = {number: part for number in asked if (part := copying.chunk(number)) is not None}
    assert copying.all_sent
    rng.shuffle(asked)  # type: ignore[attr-defined]
    for number in (n for n in asked if n in parts):  # nobody answers where there is no such chunk
        assert not gathering.whole
        assert gathering.take(number, parts[number], whole=copying.bytes)
        assert not gathering.take(number, parts[number], whole=copying.bytes)
    assert gathering.whole
    assert all(torch.equal(a, b) for a, b in zip(into, state, strict=True))


def test_state_of_another_size_is_refused() -> None:
    whole = SMALL_CHUNK + 12
    gathering = Gathering(2, [torch.zeros(whole // 4)], SMALL_CHUNK)
    with pytest.raises(ValueError, match=f"state of 28 bytes came, not of {whole}"):
        gathering.take(0, torch.zeros(7), whole=28)
    with pytest.raises(ValueError, match="chunk 1 has 8 bytes, not 12"):
        gathering.take(1, torch.zeros(2), whole=whole)
    assert not gathering.whole


def test_a_chunk_within_one_tensor_is_no_copy() -> None:
    tensors = [torch.zeros(2, 3), torch.zeros(4)]
    part = slice_of(tensors, 1, 5)
    assert part.untyped_storage().data_ptr() == tensors[0].untyped_storage().data_ptr()


@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=3).map(torch.Size), max_size=5),
    cuts=st.lists(st.floats(0.0, 1.0), max_size=3),
)
def test_what_was_cut_into_pieces_is_put_together_again(
    shapes: list[torch.Size], cuts: list[float]
) -> None:
    tensors = [torch.randn(shape) for shape in shapes]
    size = sum(shape.numel() for shape in shapes)
    bounds = [0, *sorted(int(cut * size) for cut in cuts), size]
    pieces = [piece for ends in pairwise(bounds) for piece in pieces_of(tensors, *ends)]
    whole = put_together(pieces, shapes)
    assert [t.shape for t in whole] == shapes
    assert all(torch.equal(a, b) for a, b in zip(whole, tensors, strict=True))
    ends = list(accumulate(shape.numel() for shape in shapes))
    for found, tensor, end in zip(whole, tensors, ends, strict=True):
        cut_within = any(end - tensor.numel() < bound < end for bound in bounds)
        if tensor.numel():
            assert (found.data_ptr() == tensor.data_ptr()) is not cut_within


@pytest.mark.parametrize(("start", "stop"), [(0, 6), (1, 5), (4, 9), (3, 3)])
def test_a_copy_has_memory_of_its_own(start: int, stop: int) -> None:
    whole = torch.arange(10.0)
    tensors = [whole[:6].view(2, 3), whole[6:]]
    part = copy_of(tensors, start, stop)
    assert torch.equal(part, whole[start:stop])
    assert part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    assert part.untyped_storage().nbytes() == part.numel() * part.element_size()


def test_what_is_still_to_be_sent_is_copied_once() -> None:
    here = torch.arange(3.0)
    copying = Copying(16)
    copying.begin([here, here + 3], 0)
    copying.freeze()
    here.zero_()
    copying.freeze()  # at every further step of the owner
    sent = [copying.chunk(n) for n in range(2)]
    assert [x.view(torch.float32).tolist() for x in sent if x is not None] == [[0, 1, 2, 3], [4, 5]]
