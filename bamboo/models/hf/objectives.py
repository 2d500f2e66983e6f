"""What a model is trained to find in tokens, where that is not the next one.

Rule: all that is drawn for a sample is drawn from its key, so each data epoch draws others, and
any node draws the same.
"""

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bamboo.data.dataset import Data
from bamboo.data.tokens import UNCOUNTED
from bamboo.errors import InputError

Batch = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


class MaskedWords:
    """Tokens of which some are to be found again (Devlin et al., 2019): 15 of 100, of which 80 of
    100 are covered by the mask, the largest token of the vocabulary, 10 are another token, and 10
    are left as they are."""

    unit = "masked token"
    SHARE = 0.15
    COVERED = 0.8
    SWAPPED = 0.9

    def __init__(self, data: Data, *, vocabulary: int) -> None:
        _check_free(data, vocabulary - 1, "the mask")
        self._data = data
        self._mask = vocabulary - 1
        count: int | Callable[[int, int], int] = getattr(data, "count", 1)
        self._length = count if callable(count) else None
        self._tokens = 0 if callable(count) else count
        self.samples = data.samples
        self.digest = _digest_of(data, "masked", vocabulary)

    def count(self, index: int, key: int) -> int:
        """How many are to be found."""
        return int(self._chosen(index, key, torch.Generator().manual_seed(key)).sum())

    def _chosen(self, index: int, key: int, generator: torch.Generator) -> Tensor:
        tokens = self._length(index, key) if self._length else self._tokens
        return torch.rand(tokens, generator=generator) < self.SHARE

    def batch(self, indices: Sequence[int], keys: Sequence[int]) -> Batch:
        """((tokens_BT,), (targets_BT,)), int64; of documents of unequal length ((tokens_BT,
        mask_BT), (targets_BT,)), where the mask is false behind their ends."""
        (tokens_BT,), _ = self._data.batch(indices, keys)
        seen_BT, targets_BT = tokens_BT.clone(), torch.full_like(tokens_BT, UNCOUNTED)
        mask_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
        for row, (index, key) in enumerate(zip(indices, keys, strict=True)):
            generator = torch.Generator().manual_seed(key)
            chosen_T = self._chosen(index, key, generator)
            length = len(chosen_T)
            how_T = torch.rand(length, generator=generator)
            any_T = torch.randint(self._mask, (length,), generator=generator)
            seen_T, plain_T = seen_BT[row, :length], tokens_BT[row, :length]
            targets_BT[row, :length][chosen_T] = plain_T[chosen_T]
            seen_T[chosen_T & (how_T < self.COVERED)] = self._mask
            swapped_T = chosen_T & (how_T >= self.COVERED) & (how_T < self.SWAPPED)
            seen_T[swapped_T] = any_T[swapped_T]
            mask_BT[row, :length] = True
        return ((seen_BT, mask_BT) if self._length else (seen_BT,)), (targets_BT,)


class LostSpans:
    """Text with spans left out, which the decoder says (Raffel et al., 2020): 15 of 100 tokens, in
    spans of 3 on the mean. In place of each span stands a sentinel, and before the span that is
    said the same one: the largest tokens of the vocabulary, from the last one downwards."""

    unit = "token"
    SHARE = 0.15
    SPAN = 3.0

    def __init__(self, data: Data, *, vocabulary: int, start: int, end: int) -> None:
        self._data = data
        self._vocabulary = vocabulary
        self._start = start
        self._end = end
        tokens: int | Callable[[int, int], int] = getattr(data, "count", 1)
        self._length = tokens if callable(tokens) else None
        most: int = getattr(data, "most", 1) if callable(tokens) else tokens
        _check_free(data, vocabulary - _lost_of(most)[1], "the spans that are left out")
        self.samples = data.samples
        self.digest = _digest_of(data, "spans", vocabulary, start, end)
        self.count = self._counted if self._length else _said_of(most)
        """Tokens that the decoder says, with the end."""

    def _counted(self, index: int, key: int) -> int:
        assert self._length is not None, "documents have a length each"
        return _said_of(self._length(index, key))

    def batch(self, indices: Sequence[int], keys: Sequence[int]) -> Batch:
        """((tokens_BS, before_BT), (targets_BT,)), int64: what the encoder is given, what the
        decoder has said before each target, and the targets; of documents of unequal length
        ((tokens_BS, before_BT, mask_BS), (targets_BT,)), where the mask is false behind the ends of
        what the encoder is given. A document of one token has no target."""
        (tokens_BT, *_), _ = self._data.batch(indices, keys)
        lengths = (
            [self._length(index, key) for index, key in zip(indices, keys, strict=True)]
            if self._length
            else [tokens_BT.shape[1]] * len(indices)
        )
        rows = [
            self._row(tokens[:length], key)
            for tokens, length, key in zip(tokens_BT, lengths, keys, strict=True)
        ]
        seen, said = zip(*rows, strict=True)
        seen_BS, targets_BT = _padded(seen, 0), _padded(said, UNCOUNTED)
        before_BT = targets_BT.roll(1, dims=1).clamp(min=0)
        before_BT[:, 0] = self._start
        if self._length is None:
            return (seen_BS, before_BT), (targets_BT,)
        mask_BS = torch.zeros_like(seen_BS, dtype=torch.bool)
        for row, tokens in enumerate(seen):
            mask_BS[row, : len(tokens)] = True
        return (seen_BS, before_BT, mask_BS), (targets_BT,)

    def _row(self, tokens_T: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """What the encoder is given of a sample, and what the decoder is to say."""
        left_out, spans = _lost_of(len(tokens_T))
        if not left_out:
            return tokens_T, tokens_T[:0]
        generator = torch.Generator().manual_seed(key)
        kept = _lengths(len(tokens_T) - left_out, spans, generator)
        lost = _lengths(left_out, spans, generator)
        seen: list[Tensor] = []
        said: list[Tensor] = []
        at = 0
        for number, (length, gone) in enumerate(zip(kept, lost, strict=True)):
            sign = tokens_T.new_tensor([self._vocabulary - 1 - number])
            seen += [tokens_T[at : at + length], sign]
            said += [sign, tokens_T[at + length : at + length + gone]]
            at += length + gone
        return torch.cat(seen), torch.cat([*said, tokens_T.new_tensor([self._end])])


def _lost_of(tokens: int) -> tuple[int, int]:
    """How many of a sample's tokens are left out, and in how many spans; none of less than two."""
    if tokens < 2:
        return 0, 0
    lost = max(1, round(tokens * LostSpans.SHARE))
    return lost, max(1, round(lost / LostSpans.SPAN))


def _said_of(tokens: int) -> int:
    """How many tokens are to be said of a sample with so many."""
    lost, spans = _lost_of(tokens)
    return lost + spans + 1 if lost else 0


def _padded(rows: Sequence[Tensor], fill: int) -> Tensor:
    """The rows as one tensor, at least one wide, with `fill` behind their ends."""
    width = max([1, *map(len, rows)])
    out = rows[0].new_full((len(rows), width), fill)
    for row, tokens in enumerate(rows):
        out[row, : len(tokens)] = tokens
    return out


def _lengths(total: int, parts: int, generator: torch.Generator) -> list[int]:
    """So many lengths of at least 1, all divisions being as likely."""
    cuts = torch.randperm(total - 1, generator=generator)[: parts - 1].sort().values.tolist()
    ends = [cut + 1 for cut in cuts] + [total]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def _check_free(data: Data, first: int, what: str) -> None:
    """Raises InputError unless all tokens from `first` on are free for that."""
    largest = getattr(data, "largest_token", -1)
    if largest >= first:
        raise InputError(
            f"the tokens of the data go up to {largest}, and {what} need those from {first} on; "
            f"take a larger vocabulary in the model's config.json"
        )


def _digest_of(data: Data, *how: object) -> str:
    return hashlib.sha256(repr((data.digest, how)).encode()).hexdigest()
