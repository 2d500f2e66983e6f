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
    bounds_of,
    copy_of,
    pieces_of,
    put_together,
    slice_of,
)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_chunks_put_together_are_the_whole(sizes: list[int], chunk: int) -> None:
    numbers = torch.arange(float(sum(sizes)))
    tensors = list(torch.split(numbers, sizes))
    starts = range(0, numbers.numel(), chunk)
    chunks = [slice_of(tensors, at, min(at + chunk, numbers.numel())) for at in starts]
    assert torch.equal(torch.cat([torch.empty(0), *chunks]), numbers)


@pytest.mark.parametrize("as_bytes", [False, True])
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    chunk=st.integers(1, 12),
    window=st.integers(1, 3),
    rng=st.randoms(use_true_random=False),
)
def test_what_comes_in_any_order_lies_where_it_belongs(
    as_bytes: bool, sizes: list[int], chunk: int, window: int, rng: object
) -> None:
    whole = torch.arange(1.0, 1.0 + sum(sizes))
    into = [torch.zeros(size) for size in sizes]
    gathering = Gathering(window, into, chunk)
    asked = list(range(window))
    while (wanted := gathering.next_chunk()) is not None:
        asked.append(wanted)
    rng.shuffle(asked)  # type: ignore[attr-defined]
    for number in asked:
        bounds = bounds_of(number, whole.numel(), chunk)
        if bounds is None:
            continue  # nobody answers: there is no such chunk
        part = whole[slice(*bounds)]
        part = part.view(torch.uint8) if as_bytes else part
        assert not gathering.whole
        assert gathering.take(number, part, elements=whole.numel())
        assert not gathering.take(number, part, elements=whole.numel())
    assert gathering.whole
    assert torch.equal(torch.cat(into), whole)


def test_state_of_another_size_is_refused() -> None:
    elements = SMALL_CHUNK + 3
    gathering = Gathering(2, [torch.zeros(elements)], SMALL_CHUNK)
    with pytest.raises(ValueError, match=f"state of 7 elements came, not of {elements}"):
        gathering.take(0, torch.zeros(7), elements=7)
    with pytest.raises(ValueError, match="chunk 1 has 8 bytes, not 12"):
        gathering.take(1, torch.zeros(2), elements=elements)
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
    copying = Copying(4)
    copying.begin([here, here + 3], 0)
    copying.freeze()
    here.zero_()
    copying.freeze()  # at every further step of the owner
    assert [copying.chunk(n).tolist() for n in range(2)] == [[0, 1, 2, 3], [4, 5]]
