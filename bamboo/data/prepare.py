"""`bamboo prepare`: makes the token file of a job's data, or the tree over one that is there.

Rule: the same contents give the same tokens, wherever the files lie and whatever was prepared
before. What was made once is not made again.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bamboo.config.prepared import (
    Source,
    find_tokens,
    header_of_whole,
    made_at,
    refuse,
    seen_at,
    source_files,
    token_file,
    tokenizer_digest,
)
from bamboo.config.tree import TOKENS, DataConfig, JobConfig
from bamboo.data.pieces import Piece, pieces_of
from bamboo.data.token_writer import TokenWriter, write_tree
from bamboo.data.tokenizer import Tokenizer
from bamboo.errors import InputError
from bamboo.far_tokens import place_of
from bamboo.named_files import sha256_of
from bamboo.new_files import write_whole
from bamboo.ports import Told
from bamboo.token_files import Facts, Header, read_facts, read_header, read_tree

BATCH_CHARACTERS = 1 << 21
"""Text that goes to the tokenizer together, which divides it over the cores."""
BATCH_IDS = 1 << 20
MIB = 1 << 20
ONLY_MINE = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The token file of a job's data."""

    path: Path
    header: Header
    facts: Facts
    source_bytes: int
    """Of what was read."""
    took_s: float
    """0: it was there already."""
    place: str = ""
    """Where it lies; "": at `path`, and else that is its stand-in."""


def prepare(job: JobConfig, data: DataConfig, told: Told, *, section: str = "data") -> Prepared:
    """Make what a run reads of these data; `section` is the one of the job file that describes
    them. `told` counts in MiB. Raises InputError."""
    began_s = time.monotonic()
    if data.source == TOKENS:
        path, header = token_file(job, data, section=section)
        total = max(1, header.size_bytes // MIB)
        if place_of(path) is not None:
            return _in_bucket(job, path, header, section=section)
        facts = write_tree(path, header, lambda done_bytes: told(done_bytes // MIB, total))
        size_bytes, made = header.size_bytes, True
    else:
        source = source_files(job, data, section=section)
        path, made = _of_text(job, data, source, told, section=section)
        header, size_bytes = read_header(path), source.size_bytes
        found = read_facts(path, header)
        assert found is not None, "it was written, or was there"
        facts = found
    took_s = time.monotonic() - began_s if made else 0.0
    return Prepared(path=path, header=header, facts=facts, source_bytes=size_bytes, took_s=took_s)


def _in_bucket(job: JobConfig, path: Path, header: Header, *, section: str) -> Prepared:
    """What there is of a token file in a bucket, whose hashes were written elsewhere. Raises
    InputError where they are not those of its header."""
    data = job.data if section == "data" else job.evaluated
    find_tokens(job, data, section=section)
    found = read_tree(path, header)
    assert found is not None, "else it is not found"
    return Prepared(
        path=path,
        header=header,
        facts=found[0],
        source_bytes=header.size_bytes,
        took_s=0.0,
        place=data.path,
    )


def _of_text(
    job: JobConfig, data: DataConfig, source: Source, told: Told, *, section: str
) -> tuple[Path, bool]:
    """The token file, and whether it was made now."""
    tokenizer = tokenizer_digest(job, data, section=section)
    path = made_at(data, [sha256_of(file) for file in source.files], tokenizer)
    made = header_of_whole(path) is None
    if made:
        total = max(1, source.size_bytes // MIB)
        tokenizer_ids = Tokenizer(job, data, section=section) if data.tokenizer else None
        pieces = _all_of(job, data, source, section=section)
        with _writable(path.parent):
            _write(path, pieces, tokenizer_ids, lambda done: told(done // MIB, total))
    seen = seen_at(job, data, source, section=section)
    with _writable(seen.parent):
        write_whole(seen, path.parent.name.encode())
    return path, made


def _all_of(job: JobConfig, data: DataConfig, source: Source, *, section: str) -> Iterator[Piece]:
    """The documents of a source, of which there is one at least. Raises InputError where the files
    change meanwhile: their tokens would get the name of other contents."""
    piece = None
    for piece in pieces_of(job, data, source, section=section):
        yield piece
    problem, remedy = "holds no document", "name a file that has one"
    if source_files(job, data, section=section).stamp != source.stamp:
        problem, remedy = "has changed while it was read", "prepare it once nothing writes there"
    elif piece is not None:
        return
    raise refuse(job, f"{section}.path", data.path, problem, remedy)


def _write(
    path: Path, pieces: Iterable[Piece], tokenizer: Tokenizer | None, told: Callable[[int], None]
) -> None:
    """Make the token file of these documents; without a tokenizer their contents are ids."""
    end = () if tokenizer is None or tokenizer.end is None else (tokenizer.end,)
    known: dict[str, Any] = {"vocabulary": None, "tokenizer": "", "end": None}
    if tokenizer is not None:
        known = {
            "vocabulary": tokenizer.vocabulary,
            "tokenizer": tokenizer.digest,
            "end": tokenizer.end,
        }
    length = 0  # of the document that goes on
    with TokenWriter(path, **known) as writer:
        for batch in _batches(pieces, BATCH_IDS if tokenizer is None else BATCH_CHARACTERS):
            contents = [piece.content for piece in batch]
            parts: list[Sequence[int]] = []
            ends, place = [], 0
            for piece, ids in zip(
                batch, contents if tokenizer is None else tokenizer.ids(contents), strict=True
            ):
                parts.append(ids)
                place, length = place + len(ids), length + len(ids)
                if not piece.ends:
                    continue
                if not length:
                    raise InputError(f"{piece.place}: the document is empty; leave it out")
                parts.append(end)
                place, length = place + len(end), 0
                ends.append(place)
            flat = np.fromiter(itertools.chain.from_iterable(parts), np.int64, count=place)
            writer.add(flat, np.asarray(ends, dtype=np.int64))
            told(batch[-1].done_bytes)
        writer.end()


def _batches(pieces: Iterable[Piece], most: int) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.content)
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(mode=ONLY_MINE, parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written: {error.strerror}; make room there, or set BAMBOO_HOME"
        ) from error
