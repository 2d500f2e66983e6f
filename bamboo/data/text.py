"""Text as data: windows of bytes, each of which is a token.

Rule: a window is addressed by its number alone, so nothing is drawn and nothing is kept.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bamboo.config.tree import JobConfig
from bamboo.data.sources import read_source
from bamboo.errors import InputError

COUNT_BYTES = 1 << 20


class Text:
    """Windows of `context` + 1 tokens, each of which begins with the last token of the one before.

    Window w covers tokens [w * context, w * context + context]; the inputs are all but its last
    token, the targets all but its first. A last window that would be too short is left out.
    """

    unit = "token"
    alike = True
    """All samples have the same shape and the same count."""

    def __init__(self, text: bytearray, *, context: int) -> None:
        self._tokens = torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0)
        self._window = torch.arange(context + 1)
        self.count = context
        """Tokens in a window."""
        self.samples = max(len(text) - 1, 0) // context
        """Windows in one data epoch."""
        self.size_bytes = len(text)
        self.digest = hashlib.sha256(text).hexdigest()
        """SHA-256 of the bytes."""

    def batch(
        self, indices: Sequence[int], keys: Sequence[int]
    ) -> tuple[tuple[Tensor], tuple[Tensor]]:
        """((inputs_BT,), (targets_BT,)), int64, of these windows; `keys` are not looked at."""
        del keys
        starts_B = torch.tensor(indices) * self.count
        window_BT = self._tokens[starts_B[:, None] + self._window].long()
        return (window_BT[:, :-1].contiguous(),), (window_BT[:, 1:].contiguous(),)

    @cached_property
    def unigram_entropy_nats(self) -> float:
        """Entropy of the byte frequencies: the loss of the best model that ignores context."""
        share = self._counts / self._counts.sum()
        present = share[share > 0]
        return float(-(present * np.log(present)).sum())

    @cached_property
    def largest_token(self) -> int:
        """The largest token that occurs; a model's vocabulary must be larger."""
        return int(np.flatnonzero(self._counts)[-1])

    @cached_property
    def _counts(self) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        counts = np.zeros(256, dtype=np.int64)
        tokens = self._tokens.numpy()
        for start in range(0, len(tokens), COUNT_BYTES):
            # bincount widens its input to 8 bytes a token, so count in pieces.
            counts += np.bincount(tokens[start : start + COUNT_BYTES], minlength=256)
        return counts


def named_by(job: JobConfig, *, section: str = "data") -> tuple[str, str]:
    """The key of the job file that names the data, in this section, and its value."""
    key = "path" if job.data.path else "source"
    return f"{section}.{key}", getattr(job.data, key)


def text_of(job: JobConfig, given: bytearray | None = None, *, section: str = "data") -> Text:
    """The text of a job, read here unless it is `given`; `section` is the one of the job file that
    names it. Raises InputError when there is none, less than one window of it, or a token that the
    model's vocabulary has no row for."""
    text = read_source(job, section=section) if given is None else given
    data = Text(text, context=job.model.context)
    key, value = named_by(job, section=section)
    if data.samples < 1:
        cuts = len(text) == job.data.max_bytes > 0  # and there may be more than that
        raise InputError.at(
            file=job.file,
            key="data.max_bytes" if cuts else key,
            value=job.data.max_bytes if cuts else value,
            problem=f"{len(text)} bytes hold no window of context + 1 = {job.model.context + 1}",
            remedy="give more text or a smaller model.context",
        )
    if job.model.vocabulary < 256 and data.largest_token >= job.model.vocabulary:
        raise InputError.at(
            file=job.file,
            key="model.vocabulary",
            value=job.model.vocabulary,
            problem=f"the data holds byte {data.largest_token}",
            remedy="take at least 256",
        )
    return data
