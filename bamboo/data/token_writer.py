"""Writes token files, and the tree of hashes over those that are there.

Rule: the tree is written last, so that a file without one is a file that is not ready.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

from bamboo.errors import InputError
from bamboo.named_files import open_named
from bamboo.new_files import whole_file, write_whole
from bamboo.token_files import (
    CHUNK_BYTES,
    DOCUMENTS,
    HEADER,
    MOST_VOCABULARY,
    OFFSET_BYTES,
    TREE,
    Facts,
    Header,
    beside,
    header_file,
    leaf,
    root_of,
    tree_file,
)

Ids: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"
U2_MOST = 1 << 16


class Hashed:
    """The leaves over bytes that come one after the other."""

    def __init__(self) -> None:
        self.leaves = bytearray()
        self._rest = bytearray()

    def add(self, part: bytes | memoryview) -> None:
        self._rest += part
        while len(self._rest) >= CHUNK_BYTES:
            self.leaves += leaf(memoryview(self._rest)[:CHUNK_BYTES].tobytes())
            del self._rest[:CHUNK_BYTES]

    def end(self) -> bytes:
        """All leaves, once there are no more bytes."""
        if self._rest:
            self.leaves += leaf(self._rest)
            self._rest.clear()
        return bytes(self.leaves)


class Counted:
    """How often each token occurs."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._counts = np.zeros(0, dtype=np.int64)

    def add(self, ids: Ids, *, name: Path, first: int) -> None:
        """Count tokens, before which there are `first` others. Raises InputError for one that the
        vocabulary does not have."""
        if not len(ids):
            return
        if (least := int(ids.min())) < 0:
            raise InputError(f"{name}: a token is {least}; give ids from 0")
        largest = int(ids.max())
        if largest >= self._vocabulary:
            at = first + int(np.flatnonzero(ids == largest)[0])
            raise InputError(
                f"{name}: token {at:,} is {largest}, and the vocabulary of its header has "
                f"{self._vocabulary:,}; correct the header, or make the tokens again"
            )
        if largest >= len(self._counts):
            self._counts = np.pad(self._counts, (0, largest + 1 - len(self._counts)))
        found = np.bincount(ids)
        self._counts[: len(found)] += found

    @property
    def largest(self) -> int:
        return int(np.flatnonzero(self._counts)[-1])

    @property
    def entropy_nats(self) -> float:
        share = self._counts[self._counts > 0] / self._counts.sum()
        return math.fsum(-(share * np.log(share)))


def write_tree(path: Path, header: Header, told: Callable[[int], None]) -> Facts:
    """Write the tree over a token file that is there, and over its documents. Raises InputError for
    tokens that its vocabulary does not have, for documents that do not divide it, and for what
    cannot be read or written."""
    tokens = Hashed()
    counted = Counted(header.vocabulary)
    dtype = np.dtype(f"<{header.type}")
    done = 0
    for part in _parts(path):
        ids = np.frombuffer(part, dtype).astype(np.int64)
        counted.add(ids, name=path, first=done // dtype.itemsize)
        tokens.add(part)
        done += len(part)
        told(done)
    found = beside(path, DOCUMENTS)
    documents, leaves = _documents_of(found, header.tokens) if found.exists() else (0, b"")
    leaves = tokens.end() + leaves
    facts = _facts(header, documents, counted, leaves)
    try:
        write_whole(beside(path, TREE), tree_file(facts, leaves))
    except OSError as error:
        raise InputError(
            f"{beside(path, TREE)} cannot be written: {error.strerror}; copy the tokens to a "
            "folder that you may write"
        ) from error
    return facts


def _documents_of(path: Path, tokens: int) -> tuple[int, bytes]:
    """How many documents there are, and the leaves over where they begin."""
    hashed = Hashed()
    last = -1
    count = 0
    for part in _parts(path):
        hashed.add(part)
        if len(part) % OFFSET_BYTES:
            raise InputError(f"{path} is no list of u8 numbers; write it again")
        begins = np.frombuffer(part, "<u8").astype(np.int64)
        steps = np.diff(begins, prepend=last)
        if last < 0 and begins[0] != 0:
            raise InputError(f"{path} begins with {begins[0]}; begin with 0")
        if (wrong := np.flatnonzero(steps <= 0)).size:
            at = count + int(wrong[0])
            raise InputError(
                f"{path}: document {at - 1:,} is empty (it ends at {begins[wrong[0]]:,}); leave "
                "out documents without a token"
            )
        last, count = int(begins[-1]), count + len(begins)
    if last != tokens:
        raise InputError(f"{path} ends with {last:,}; end with the number of tokens, {tokens:,}")
    return count - 1, hashed.end()


def _parts(path: Path) -> Iterator[bytes]:
    try:
        with open_named(path) as file:
            while part := file.read(CHUNK_BYTES):
                yield part
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; make it readable") from error


def _facts(header: Header, documents: int, counted: Counted, leaves: bytes) -> Facts:
    return Facts(
        type=header.type,
        tokens=header.tokens,
        documents=documents,
        largest=counted.largest,
        root=root_of(leaves),
        entropy_nats=counted.entropy_nats,
    )


class TokenWriter:
    """A new token file, whose documents come one after the other. It is there, with all that
    belongs to it, once `end` returns; what is left without is nothing that is read. `vocabulary`
    None: it ends with the largest token."""

    def __init__(
        self, path: Path, *, vocabulary: int | None, tokenizer: str, end: int | None
    ) -> None:
        self._path = path
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._end = end
        self._type = "u2" if vocabulary is not None and vocabulary <= U2_MOST else "u4"
        self._files = ExitStack()
        self._tokens = Hashed()
        self._begins = Hashed()
        self._counted = Counted(MOST_VOCABULARY if vocabulary is None else vocabulary)
        self.tokens = self.documents = 0

    def __enter__(self) -> "TokenWriter":
        self._file = self._files.enter_context(whole_file(self._path))
        self._documents = self._files.enter_context(whole_file(beside(self._path, DOCUMENTS)))
        self._put(self._documents, self._begins, bytes(OFFSET_BYTES))
        return self

    def __exit__(self, *broken: object) -> None:
        self._files.__exit__(*broken)  # type: ignore[arg-type]

    def add(self, ids: Ids, ends: Ids) -> None:
        """Append tokens, and say where among them documents end: behind so many of them."""
        self._counted.add(ids, name=self._path, first=self.tokens)
        self._put(self._file, self._tokens, ids.astype(f"<{self._type}").tobytes())
        behind = (self.tokens + ends).astype("<u8")
        self._put(self._documents, self._begins, behind.tobytes())
        self.tokens += len(ids)
        self.documents += len(ends)

    def _put(self, file: BinaryIO, hashed: Hashed, part: bytes) -> None:
        file.write(part)
        hashed.add(part)

    def end(self) -> None:
        """Give the files their names. Raises OSError."""
        self._files.close()
        header = Header(
            type=self._type,
            tokens=self.tokens,
            vocabulary=max(2, self._vocabulary or self._counted.largest + 1),
            tokenizer=self._tokenizer,
            end=self._end,
        )
        leaves = self._tokens.end() + self._begins.end()
        facts = _facts(header, self.documents, self._counted, leaves)
        write_whole(beside(self._path, HEADER), header_file(header))
        write_whole(beside(self._path, TREE), tree_file(facts, leaves))
