"""Token files: their names, their headers, and the tree of hashes over their chunks.

A token file at `PATH` has the ids of its tokens one after the other, little-endian. Beside it lie

    PATH.json        the header: {"type": "u2" or "u4", "tokens": number, "vocabulary": size}, and
                     where they are known "tokenizer" (the SHA-256 of its file) and "end" (the id
                     that ends a document)
    PATH.documents   where documents begin: u8, little-endian, from 0 to the number of tokens; it
                     may be missing
    PATH.tree        what `bamboo prepare` writes: a line of JSON (`Facts`), then the hash of each
                     chunk of the token file, and of each chunk of the documents

The tree is a Merkle tree with SHA-256, as in RFC 6962: a leaf is the hash of a zero byte and the
chunk, an inner node that of a one byte and its two children.

Rule: opening reads the header and the tree, and nothing of the tokens. A chunk is compared with
its hash by each process that reads it, at its first read.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bamboo.errors import InputError
from bamboo.named_files import open_named, read_bounded

HEADER = ".json"
DOCUMENTS = ".documents"
TREE = ".tree"
FILES = ("", HEADER, DOCUMENTS, TREE)
"""All that belongs to a token file, by its ending."""
CHUNK_BYTES = 1 << 20
HASH_BYTES = 32
OFFSET_BYTES = 8
WIDTHS = {"u2": 2, "u4": 4}
"""Bytes of an id, by type."""
MOST_VOCABULARY = 100_000_000
"""A model has at most as many rows; what counts tokens has a number for each."""
_FORMAT = 1
_LONGEST_LINE = 1 << 16
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a token file says of itself."""

    type: str
    tokens: int
    vocabulary: int
    """Every id is below it."""
    tokenizer: str = ""
    """The SHA-256 of the tokenizer's file; "": unknown."""
    end: int | None = None
    """The id that ends a document."""

    @property
    def size_bytes(self) -> int:
        return self.tokens * WIDTHS[self.type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What `bamboo prepare` saw of a token file."""

    type: str
    tokens: int
    documents: int
    """0: where documents begin is unknown."""
    largest: int
    """The largest id that occurs."""
    root: str
    """The root of the tree."""
    entropy_nats: float
    """Entropy of the frequencies of the tokens."""

    @property
    def digest(self) -> str:
        """What identifies windows of the contents, in hexadecimal."""
        return self._digest("bamboo tokens")

    @property
    def padded_digest(self) -> str:
        """What identifies the documents, each by itself."""
        return self._digest("bamboo documents")

    def _digest(self, what: str) -> str:
        known = {what: _FORMAT, **asdict(self)}
        del known["entropy_nats"]  # the last bits of a logarithm are the machine's
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class FarFile:
    """A file in a bucket."""

    name: str
    read: Callable[[int, int], bytes]
    """(begin, end) -> those bytes. Raises StorageUnavailable, DamagedData where it is gone."""
    remedy: str
    """What to do where it is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FarTokens:
    """A prepared token file in a bucket."""

    path: Path
    """Of this process alone: header and hashes are here, and the rest has holes."""
    tokens: FarFile
    documents: FarFile | None


def beside(path: Path, ending: str) -> Path:
    """The file of this ending that belongs to a token file."""
    return path.with_name(path.name + ending)


def chunks_of(size_bytes: int) -> int:
    """How many chunks so many bytes have."""
    return -(-size_bytes // CHUNK_BYTES)


def leaf(chunk: bytes | bytearray | memoryview) -> bytes:
    """The hash of a chunk."""
    found = hashlib.sha256(b"\0")
    found.update(chunk)
    return found.digest()


def root_of(leaves: bytes) -> str:
    """The root over these leaves, one after the other; an odd node at the end of a row goes up as
    it is, which makes the tree of RFC 6962."""
    row = [leaves[at : at + HASH_BYTES] for at in range(0, len(leaves), HASH_BYTES)]
    if not row:
        return hashlib.sha256(b"").hexdigest()
    while len(row) > 1:
        odd = row[-1:] if len(row) % 2 else []
        pairs = zip(row[::2], row[1::2], strict=False)
        row = [hashlib.sha256(b"\1" + one + other).digest() for one, other in pairs] + odd
    return row[0].hex()


def read_header(path: Path) -> Header:
    """The header of the token file at `path`, whose size it agrees with. Raises InputError."""
    name = beside(path, HEADER)
    try:
        said = json.loads(read_bounded(name))
    except FileNotFoundError as error:
        raise InputError(
            f"{path} has no header {name.name} beside it; write one such as "
            '{"type": "u2", "tokens": 1000, "vocabulary": 512}'
        ) from error
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}; make it readable") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is no JSON ({error}); write it again") from error
    header = _header(name, said)
    found_bytes = _size(path)
    if found_bytes != header.size_bytes:
        raise InputError(
            f"{name} says {header.tokens:,} tokens of {header.type}, which are "
            f"{header.size_bytes:,} bytes, and {path.name} has {found_bytes:,}; correct the header"
        )
    return header


def _header(name: Path, said: Any) -> Header:
    wanted = {
        "type": "u2 or u4",
        "tokens": "a number",
        "vocabulary": f"a number from 2 to {MOST_VOCABULARY:,}",
    }
    if not isinstance(said, Mapping):
        raise InputError(f"{name} is no JSON object; give it {', '.join(wanted)}")
    kind = said.get("type")
    end = said.get("end")
    tokenizer = said.get("tokenizer", "")
    for key, good in (
        ("type", isinstance(kind, str) and kind in WIDTHS),
        ("tokens", _whole(said.get("tokens"), 1)),
        ("vocabulary", _whole(said.get("vocabulary"), 2, MOST_VOCABULARY)),
        ("end", end is None or _whole(end, 0)),
        ("tokenizer", isinstance(tokenizer, str)),
    ):
        if not good:
            raise InputError(
                f"{name}: {key} = {said.get(key)!r} is not possible; give "
                f"{wanted.get(key, 'what prepare writes, or leave it out')}"
            )
    return Header(
        type=str(kind),
        tokens=said["tokens"],
        vocabulary=said["vocabulary"],
        tokenizer=tokenizer,
        end=end,
    )


def _whole(value: object, least: int, most: int | None = None) -> bool:
    return type(value) is int and value >= least and (most is None or value <= most)


def read_facts(path: Path, header: Header) -> Facts | None:
    """What was prepared of the token file at `path`; None where that was not done, or was done of
    another content, as the header shows. Raises InputError for a damaged tree."""
    found = _read_tree(path, leaves=False)
    return None if found is None or not _agree(found[0], header) else found[0]


def read_tree(path: Path, header: Header) -> tuple[Facts, bytes] | None:
    """The same with the leaves of the tree, whose root is compared."""
    found = _read_tree(path, leaves=True)
    if found is None or not _agree(found[0], header):
        return None
    facts, leaves = found
    documents_bytes = (facts.documents + 1) * OFFSET_BYTES if facts.documents else 0
    chunks = chunks_of(header.size_bytes) + chunks_of(documents_bytes)
    if len(leaves) != chunks * HASH_BYTES or root_of(leaves) != facts.root:
        raise _damaged(beside(path, TREE), "its hashes do not make its root")
    return found


def _agree(facts: Facts, header: Header) -> bool:
    return (facts.type, facts.tokens) == (header.type, header.tokens)


def _read_tree(path: Path, *, leaves: bool) -> tuple[Facts, bytes] | None:
    name = beside(path, TREE)
    try:
        with open_named(name) as file:
            line, rest = file.readline(_LONGEST_LINE), file.read() if leaves else b""
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}; make it readable") from error
    try:
        said = json.loads(line)
        if said.pop("format") != _FORMAT:
            raise ValueError("it is of another format")
        facts = Facts(**said)
        for one in fields(Facts):
            if type(value := getattr(facts, one.name)) is not one.type:
                raise ValueError(f"its {one.name} is {value!r}")
        return facts, rest
    except _DAMAGE as error:
        raise _damaged(name, str(error)) from error


def _damaged(name: Path, why: str) -> InputError:
    return InputError(f"{name} is damaged: {why}; delete it and say `bamboo prepare JOB`")


def tree_file(facts: Facts, leaves: bytes) -> bytes:
    """The content of a `.tree` file."""
    return json.dumps({"format": _FORMAT, **asdict(facts)}).encode() + b"\n" + leaves


def header_file(header: Header) -> bytes:
    """The content of a header."""
    known = {key: value for key, value in asdict(header).items() if value not in ("", None)}
    return json.dumps(known, indent=2).encode() + b"\n"


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise InputError(
            f"the token file {path} is not there ({error.strerror}); name one that is"
        ) from error
