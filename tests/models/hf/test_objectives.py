"""What T5 is trained on: spans that are left out, of windows and of documents of unequal length."""

import pytest

from bamboo.data.dataset import Data
from bamboo.data.tokens import UNCOUNTED
from bamboo.errors import InputError
from bamboo.models.hf.objectives import LostSpans
from tests.models.hf.test_equal import Unequal

START, END, VOCABULARY = 0, 1, 100


class Windows(Unequal):
    count = 16  # type: ignore[assignment]


def spans_of(data: Data, vocabulary: int = VOCABULARY) -> LostSpans:
    return LostSpans(data, vocabulary=vocabulary, start=START, end=END)


@pytest.mark.parametrize("of", [Unequal, Windows])
def test_what_is_left_out_is_what_is_said(of: type[Unequal]) -> None:
    data = spans_of(of())
    inputs, (targets_BT,) = data.batch([0, 1, 2], [5, 6, 7])
    seen_BS, before_BT, *masks = inputs
    lengths = [1, 9, 16] if of is Unequal else [16, 16, 16]
    (plain_BT,), _ = Unequal().batch([0, 1, 2], [5, 6, 7])
    for row, length in enumerate(lengths):
        seen = seen_BS[row].tolist()
        if masks:
            seen = seen_BS[row][masks[0][row]].tolist()
            assert masks[0][row, : len(seen)].all()
        said = targets_BT[row][targets_BT[row] != UNCOUNTED].tolist()
        count = data.count(row, row + 5) if callable(data.count) else data.count
        assert len(said) == count
        if said:
            assert before_BT[row, : len(said)].tolist() == [START, *said[:-1]]
            assert said.pop() == END
        parts: dict[int, list[int]] = {}
        for token in said:
            if token > VOCABULARY - 10:
                last = parts[token] = []
            else:
                last.append(token)
        whole = [t for token in seen for t in parts.get(token, [token])]
        assert whole == plain_BT[row, :length].tolist()


def test_signs_of_spans_must_be_free() -> None:
    class Full(Unequal):
        largest_token = 99

    with pytest.raises(InputError, match="go up to 99, and the spans that are left out need"):
        spans_of(Full())
    assert spans_of(Full(), 101).samples == 3
