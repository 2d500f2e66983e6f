"""The documents that tokens are made of: text files, lines of JSON, or a column of an Arrow folder.

Rule: they come one after the other, in the order of the files' paths and of the lines, and nothing
is kept. What is no text is refused with file and line.
"""

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo.config.prepared import Source, refuse
from bamboo.config.tree import DataConfig, JobConfig
from bamboo.errors import InputError
from bamboo.extras import need
from bamboo.named_files import open_named
from bamboo.token_files import MOST_VOCABULARY

PIECE_BYTES = 1 << 16
"""A text file comes in pieces of about this length, each of which ends with a line."""
LONGEST_LINE = 1 << 24
"""Characters; a longer line is cut."""
ROWS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a document, or all of it."""

    content: Any
    """Its text, or the ids of its tokens."""
    ends: bool
    """Whether the document ends here."""
    place: str
    """The file, and the line where it has several documents."""
    done_bytes: int
    """Of all files, up to its end."""


def pieces_of(job: JobConfig, data: DataConfig, source: Source, *, section: str) -> Iterator[Piece]:
    """The documents of a source; `section` is the one of the job file that describes it. Raises
    InputError, also while they are read."""
    if data.source == "arrow":
        yield from _arrow(job, data, source, section)
        return
    begin_bytes = 0
    for path in source.files:
        name = path.name if path == source.path else path.relative_to(source.path).as_posix()
        last = 0
        try:
            of_file = _text(path, name) if data.source == "text" else _lines(path, name, data.field)
            for content, ends, place, done_bytes in of_file:
                yield Piece(content, ends, place, begin_bytes + done_bytes)
                last = done_bytes
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; make it so") from error
        begin_bytes += last


def _text(path: Path, name: str) -> Iterator[tuple[str, bool, str, int]]:
    """A file of text as one document."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    pending = ""
    done_bytes = 0
    with open_named(path) as file:
        while part := file.read(PIECE_BYTES):
            try:
                pending += decoder.decode(part)
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path} is no UTF-8 text (byte {done_bytes + error.start:,} or a little "
                    "before); leave it out"
                ) from error
            done_bytes += len(part)
            cut = pending.rfind("\n") + 1
            if not cut and len(pending) > LONGEST_LINE:
                cut = len(pending)
            if cut:
                yield pending[:cut], False, name, done_bytes
                pending = pending[cut:]
    if decoder.getstate()[0]:
        raise InputError(f"{path} is no UTF-8 text: it ends within a character; leave it out")
    if done_bytes:  # an empty file is no document
        yield pending, True, name, done_bytes


def _lines(path: Path, name: str, field: str) -> Iterator[tuple[str, bool, str, int]]:
    """A file with a document in each line."""
    done_bytes = 0
    with open_named(path) as file:
        for number, line in enumerate(file, start=1):
            done_bytes += len(line)
            if line.isspace():
                continue
            place = f"{name}, line {number:,}"
            try:
                said = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{place} is no JSON ({error}); correct it") from error
            if not isinstance(said, dict) or not isinstance(said.get(field), str):
                found = f"{field} = {said.get(field)!r:.60}" if isinstance(said, dict) else said
                raise InputError(
                    f"{place} has no text in {field!r} ({found!s:.80}); correct it, or name the "
                    "key in data.field"
                )
            if not _is_text(said[field]):
                raise InputError(f"{place} has half a character in {field!r}; correct it")
            yield said[field], True, place, done_bytes


def _is_text(text: str) -> bool:
    """Whether UTF-8 can say it: JSON may have one half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _arrow(job: JobConfig, data: DataConfig, source: Source, section: str) -> Iterator[Piece]:
    """A column of a folder that `datasets.save_to_disk` made."""
    need("data", what=f'{section}.source = "arrow"', only="datasets")
    from datasets import DatasetDict, load_from_disk

    def at(key: str, problem: str, remedy: str) -> InputError:
        return refuse(job, f"{section}.{key}", getattr(data, key), problem, remedy)

    try:
        found = load_from_disk(str(source.path))
    except Exception as error:  # of any class, by which of its files is damaged
        problem = f"is no folder of datasets ({' '.join(str(error).split())})"
        raise at("path", problem, "name one that save_to_disk made") from error
    if isinstance(found, DatasetDict):
        splits = ", ".join(found)
        raise at(
            "path", f"has the splits {splits}", f"name one, as {data.path}/{next(iter(found))}"
        )
    if data.field not in found.column_names:
        columns = ", ".join(found.column_names)
        raise at("field", f"is none of the columns: {columns}", "name one")
    rows, number = max(1, len(found)), 0
    column = found.select_columns([data.field]).with_format(None)
    for part in column.iter(batch_size=ROWS_AT_ONCE):
        for content in part[data.field]:
            number += 1
            _check_row(content, at, number, with_tokenizer=bool(data.tokenizer))
            done_bytes = source.size_bytes * number // rows
            yield Piece(content, True, f"{source.path.name}, row {number - 1:,}", done_bytes)


def _check_row(content: object, at: Any, number: int, *, with_tokenizer: bool) -> None:
    wanted = "a text" if with_tokenizer else f"a list of ids from 0 and below {MOST_VOCABULARY:,}"
    if with_tokenizer:
        good = isinstance(content, str)
    else:
        good = isinstance(content, list) and all(
            type(one) is int and 0 <= one < MOST_VOCABULARY for one in content
        )
    if not good:
        remedy = "name another column, or " + (
            "leave out the tokenizer" if with_tokenizer else "a tokenizer"
        )
        raise at("field", f"holds in row {number - 1:,} {content!r:.40}, and not {wanted}", remedy)
