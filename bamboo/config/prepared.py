"""Finds the token file that a job's data are read from.

The token file of text lies in `$BAMBOO_HOME/data/`, in a folder that is named by the contents of
the text and the tokenizer. `bamboo prepare` writes down which files it read, and which folder they
led to.

Rule: nothing of the data is read here, only names, sizes, times and headers: what `bamboo prepare`
saw is taken as it stands. A run compares each chunk of the tokens when it reads it.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bamboo.config import far_data
from bamboo.config.home import home
from bamboo.config.tree import TOKENS, DataConfig, JobConfig
from bamboo.errors import InputError
from bamboo.far_tokens import place_of
from bamboo.named_files import files_below, read_own, sha256_of, what_is_wrong
from bamboo.token_files import DOCUMENTS, FILES, Header, beside, read_facts, read_header

FOLDER = "data"
"""In `$BAMBOO_HOME`."""
SEEN = "seen"
"""In that: what was read when."""
FILE = "tokens"
"""The name of each token file."""
PREPARE = "say `bamboo prepare JOB`"
_FORMAT = 1
"""Of the tokens that are made of the same text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files that tokens are made of."""

    path: Path
    """The file, or the folder that they are below."""
    files: tuple[Path, ...]
    size_bytes: int
    stamp: str
    """Names, sizes and times of all: other contents have another one, unless somebody hides it."""


def find_tokens(job: JobConfig, data: DataConfig, *, section: str = "data") -> tuple[Path, Header]:
    """The token file of these data and its header; `section` is the one of the job file that says
    them. Raises InputError where it is not there, not prepared, or made with another tokenizer."""
    if data.source == TOKENS:
        path, header = token_file(job, data, section=section)
        if read_facts(path, header) is not None:
            return path, header
        if far_data.is_far(data):
            problem, remedy = "is not prepared as it stands", far_data.PREPARE_THERE
            raise refuse(job, f"{section}.path", data.path, problem, remedy)
    else:
        source = source_files(job, data, section=section)
        found = _seen(seen_at(job, data, source, section=section))
        header_of_made = None if found is None else header_of_whole(found)
        if found is not None and header_of_made is not None:
            return found, header_of_made
    raise refuse(job, f"{section}.path", data.path, "is not prepared as it stands", PREPARE)


def token_files(job: JobConfig) -> dict[str, Path]:
    """Section of the job file -> its token file, of those that instances of an account read in a
    bucket. Raises InputError as `find_tokens`."""
    found = {}
    if job.data.is_prepared and not job.data.in_image:
        found["data"] = Path(job.tokens)
    if job.evaluated.is_prepared:
        found["eval"] = find_tokens(job, job.evaluated, section="eval")[0]
    return found


def bytes_in_bucket(job: JobConfig) -> int:
    """Bytes that a launch keeps in the bucket of all of these, with what lies beside them; what the
    user keeps there counts nothing. Raises InputError."""
    uploaded = [path for path in token_files(job).values() if place_of(path) is None]
    files = {beside(path, ending) for path in uploaded for ending in FILES}
    return sum(file.stat().st_size for file in files if file.exists())


def header_of_whole(path: Path) -> Header | None:
    """The header of tokens that `bamboo prepare` made; None where they are not whole, as a kill
    while their files get their names leaves them, or damage: then they are made again."""
    try:
        header = read_header(path)
        facts = read_facts(path, header)
    except InputError:
        return None
    whole = facts is not None and beside(path, DOCUMENTS).exists()
    return header if whole else None


def token_file(job: JobConfig, data: DataConfig, *, section: str = "data") -> tuple[Path, Header]:
    """The token file that the data themselves are. Raises InputError as `find_tokens` does, but
    for one that is not prepared."""
    if far_data.is_far(data):
        path = far_data.stand_in(job, data, section=section)
        try:
            header = read_header(path)
        except InputError as error:  # it names the stand-in
            raise InputError(str(error).replace(str(path), data.path)) from error
    else:
        path = Path(os.path.abspath(job.named(data.path)))
        header = read_header(path)
    tokenizer = tokenizer_digest(job, data, section=section)
    if tokenizer and header.tokenizer and header.tokenizer != tokenizer:
        raise refuse(
            job,
            f"{section}.tokenizer",
            data.tokenizer,
            f"has the SHA-256 {tokenizer[:12]}, and the tokens of {path.name} were made with "
            f"{header.tokenizer[:12]}",
            "name the tokenizer that made them, or leave it out",
        )
    return path, header


def tokenizer_digest(job: JobConfig, data: DataConfig, *, section: str = "data") -> str:
    """The SHA-256 of the tokenizer's file; "" where none is named. Raises InputError."""
    if not data.tokenizer:
        return ""
    path = job.named(data.tokenizer)
    key = f"{section}.tokenizer"
    if wrong := what_is_wrong(path):
        raise refuse(job, key, data.tokenizer, wrong, "name a tokenizer.json")
    try:
        return sha256_of(path)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise refuse(job, key, data.tokenizer, problem, "make it readable") from error


def source_files(job: JobConfig, data: DataConfig, *, section: str = "data") -> Source:
    """The files that the tokens of these data are made of. Raises InputError."""
    path = Path(os.path.abspath(job.named(data.path)))
    if wrong := what_is_wrong(path, folder=True):
        raise refuse(job, f"{section}.path", data.path, wrong, "correct the path")
    try:
        files = files_below(path) if path.is_dir() else [path]
        stats = [os.stat(file) for file in files]
    except OSError as error:
        problem = f"{error.filename} cannot be read: {error.strerror}"
        raise refuse(job, f"{section}.path", data.path, problem, "make it readable") from error
    size_bytes = sum(one.st_size for one in stats)
    if not size_bytes:
        raise refuse(job, f"{section}.path", data.path, "holds nothing", "name your text")
    known = [
        (str(file), one.st_size, one.st_mtime_ns) for file, one in zip(files, stats, strict=True)
    ]
    stamp = hashlib.sha256(json.dumps(known).encode()).hexdigest()
    return Source(path=path, files=tuple(files), size_bytes=size_bytes, stamp=stamp)


def made_at(data: DataConfig, contents: Sequence[str], tokenizer: str) -> Path:
    """Where the tokens of these data lie, given the SHA-256 of each file and of the tokenizer."""
    return home() / FOLDER / _key(data, contents, tokenizer)[:32] / FILE


def seen_at(job: JobConfig, data: DataConfig, source: Source, *, section: str = "data") -> Path:
    """The file that says where the tokens of these files lie, as they stand now."""
    tokenizer = tokenizer_digest(job, data, section=section)
    return home() / FOLDER / SEEN / _key(data, [source.stamp], tokenizer)[:32]


def _key(data: DataConfig, contents: Sequence[str], tokenizer: str) -> str:
    decides = (_FORMAT, data.source, data.field, data.end, list(contents), tokenizer)
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def _seen(path: Path) -> Path | None:
    try:
        return home() / FOLDER / read_own(path) / FILE
    except (OSError, ValueError):
        return None


def refuse(job: JobConfig, key: str, value: object, problem: str, remedy: str) -> InputError:
    """What is wrong with the data that a job names."""
    return InputError.at(file=job.file, key=key, value=value, problem=problem, remedy=remedy)
