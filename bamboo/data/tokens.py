"""Tokens as data: windows of a token file, or its documents, each padded to the longest beside it.

Rule: nothing is read before it is used, and a chunk is compared with its hash at its first read.
"""

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bamboo.config.prepared import PREPARE
from bamboo.data.chunks import CheckedFile
from bamboo.errors import InputError
from bamboo.far_tokens import place_of, read_far
from bamboo.token_files import (
    DOCUMENTS,
    HASH_BYTES,
    OFFSET_BYTES,
    WIDTHS,
    FarTokens,
    beside,
    chunks_of,
    read_header,
    read_tree,
)

UNCOUNTED = -100
"""The target that a loss leaves out: what torch's cross entropy ignores by default."""
PAD = 0
"""The input behind the end of a document; what follows from it counts nothing."""
OFFSETS_AT_ONCE = 1 << 17

Batch = tuple[tuple[Tensor], tuple[Tensor]]


class TokenFile:
    """A token file that was prepared. Raises InputError where it is not there, or not whole."""

    def __init__(self, found: Path | FarTokens) -> None:
        far = self._far(found) if isinstance(found, Path) else found
        self.path = found if isinstance(found, Path) else found.path
        path = self.path if far is None else far.path
        self.is_far = far is not None
        self.header = read_header(path)
        tree = read_tree(path, self.header)
        if tree is None:
            raise InputError(f"{path} is not prepared as it stands; {PREPARE}")
        self.facts, leaves = tree
        split = chunks_of(self.header.size_bytes) * HASH_BYTES
        self._dtype = f"<{self.header.type}"
        self._width = WIDTHS[self.header.type]
        self._tokens = CheckedFile(
            path,
            size_bytes=self.header.size_bytes,
            leaves=leaves[:split],
            far=None if far is None else far.tokens,
        )
        self._documents = (
            CheckedFile(
                beside(path, DOCUMENTS),
                size_bytes=(self.facts.documents + 1) * OFFSET_BYTES,
                leaves=leaves[split:],
                far=None if far is None else far.documents,
            )
            if self.facts.documents
            else None
        )

    def _far(self, path: Path) -> FarTokens | None:
        """Of the stand-in for a token file in a bucket; its parts are kept as long as this."""
        if place_of(path) is None:
            return None
        folder = Path(tempfile.mkdtemp(prefix="bamboo-far-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return read_far(path, folder)

    def ids(self, start: int, stop: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """The tokens from `start` up to `stop`. Raises DamagedData."""
        found = self._tokens.read(start * self._width, stop * self._width, self._dtype)
        return found.astype(np.int64)

    def ahead(self, start: int, stop: int) -> None:
        """These tokens will be read soon."""
        self._tokens.ahead(start * self._width, stop * self._width)

    def begins(self, first: int, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """Where so many documents begin, and where the last of them ends. Raises DamagedData."""
        assert self._documents is not None, "a file with documents"
        at = first * OFFSET_BYTES
        found = self._documents.read(at, at + (count + 1) * OFFSET_BYTES, "<u8")
        return found.astype(np.int64)


class _OfTokens:
    """What both kinds have of their file."""

    unit = "token"

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self.is_far = file.is_far
        """Whether it lies in a bucket, so that `ahead` is of use."""
        self.digest = file.facts.digest
        self.size_bytes = file.header.size_bytes
        self.largest_token = file.facts.largest
        self.unigram_entropy_nats = file.facts.entropy_nats

    def describe(self) -> dict[str, object]:
        """What is shown of them before a launch."""
        return {
            "file": self._file.path.name,
            "tokens": self._file.header.tokens,
            "bytes": self.size_bytes,
            "vocabulary": self._file.header.vocabulary,
            "documents": self._file.facts.documents,
            "padded": False,
        }


class Windows(_OfTokens):
    """Windows of `context` + 1 tokens, as `Text` has them, over all documents one after the
    other."""

    alike = True
    """All samples have the same shape and the same count."""

    def __init__(self, file: TokenFile, *, context: int) -> None:
        super().__init__(file)
        self.count = context
        """Tokens in a window."""
        self.samples = max(file.header.tokens - 1, 0) // context
        """Windows in one data epoch."""

    def batch(self, indices: Sequence[int], keys: Sequence[int]) -> Batch:
        """((inputs_BT,), (targets_BT,)), int64, of these windows; `keys` are not looked at. Raises
        DamagedData."""
        del keys
        window_BT = torch.empty((len(indices), self.count + 1), dtype=torch.int64)
        rows = window_BT.numpy()
        for row, index in enumerate(indices):
            start = index * self.count
            rows[row] = self._file.ids(start, start + self.count + 1)
        return (window_BT[:, :-1].contiguous(),), (window_BT[:, 1:].contiguous(),)

    def ahead(self, indices: Sequence[int]) -> None:
        """These windows will be read soon."""
        for index in indices:
            self._file.ahead(index * self.count, (index + 1) * self.count + 1)


class Documents(_OfTokens):
    """Documents, each cut behind `context` + 1 tokens. A microbatch is as long as its longest one;
    behind the end of the others the targets are masked."""

    alike = False

    def __init__(self, file: TokenFile, *, context: int) -> None:
        super().__init__(file)
        self._longest = context + 1
        """Tokens of a document at most: its labels, and the first one."""
        self.most = context
        """Labels of a document at most."""
        self.samples = file.facts.documents
        self.digest = file.facts.padded_digest

    def count(self, index: int, key: int) -> int:
        """The labels of a document: all its tokens but the first. Raises DamagedData."""
        del key
        begin, end = self._file.begins(index, 1).tolist()
        return max(0, min(end - begin, self._longest) - 1)

    def batch(self, indices: Sequence[int], keys: Sequence[int]) -> Batch:
        """((inputs_BT,), (targets_BT,)), int64. Raises DamagedData."""
        del keys
        ends = [self._file.begins(index, 1).tolist() for index in indices]
        found = [self._file.ids(a, min(b, a + self._longest)) for a, b in ends]
        shape = (len(found), max([1, *(len(ids) - 1 for ids in found)]))
        inputs_BT = torch.full(shape, PAD, dtype=torch.int64)
        targets_BT = torch.full(shape, UNCOUNTED, dtype=torch.int64)
        for row, ids in enumerate(found):
            inputs_BT[row, : len(ids) - 1] = torch.from_numpy(ids[:-1])
            targets_BT[row, : len(ids) - 1] = torch.from_numpy(ids[1:])
        return (inputs_BT,), (targets_BT,)

    def ahead(self, indices: Sequence[int]) -> None:
        """These documents will be read soon. Raises DamagedData."""
        for index in indices:
            begin, end = self._file.begins(index, 1).tolist()
            if end > begin:
                self._file.ahead(begin, min(end, begin + self._longest))

    def describe(self) -> dict[str, object]:
        """Also how many documents are cut, for which all their lengths are read."""
        cut = 0
        for first in range(0, self.samples, OFFSETS_AT_ONCE):
            begins = self._file.begins(first, min(OFFSETS_AT_ONCE, self.samples - first))
            cut += int((np.diff(begins) > self._longest).sum())
        return super().describe() | {"padded": True, "cut": cut}
