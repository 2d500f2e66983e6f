"""Token files that runs share. They lie in a bucket, each below the digest of its tokens, so that a
file is uploaded once, whichever runs read it.

    data/<digest>/tokens             with .json, .documents and .tree beside it, as on a disk
    data/<digest>/whole.json         {schema_version, bytes: {name: bytes}}: written last of all
    starts/<run>/data/<digest of the run's data>/place.json
                                     where a run reads its tokens (`bamboo.far_tokens.Place`)

Rule: what lacks `whole.json`, or an object of the right size, is not there. A file is compared with
its hashes before it is uploaded, and each chunk again by every process that reads it. A run writes
its place before it asks whether the tokens are there; who removes tokens deletes `whole.json`
before looking for places. So of a launch and a removal at the same time one sees the other.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bamboo.checkpoint.open import OpenObjects, open_objects
from bamboo.errors import InputError
from bamboo.far_tokens import SCHEMA_VERSION, TOKENS, Place, fetch, read_there
from bamboo.named_files import open_named
from bamboo.new_files import write_whole
from bamboo.ports import ObjectStore
from bamboo.token_files import (
    CHUNK_BYTES,
    DOCUMENTS,
    FILES,
    HASH_BYTES,
    Facts,
    FarTokens,
    beside,
    chunks_of,
    leaf,
    read_header,
    read_tree,
)

SHARED = "data/"
"""In the bucket of a stack; below it a folder for each digest."""
WHOLE, PLACE = "whole.json", "place.json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LARGE = ("", DOCUMENTS)
"""The files whose chunks are compared when they are read; the others are read whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTokens:
    """A prepared token file of this machine, as runs share it."""

    path: Path
    facts: Facts
    leaves: bytes
    """The hash of each chunk of the tokens, then of each chunk of the documents."""
    sizes: Mapping[str, int]
    """Bytes of each of its files, by ending."""

    @property
    def digest(self) -> str:
        """The same for the documents by themselves and one after the other."""
        return self.facts.digest

    @property
    def folder(self) -> str:
        """Where it lies in the bucket."""
        return f"{SHARED}{self.digest}"

    @property
    def size_bytes(self) -> int:
        """Of all of its files."""
        return sum(self.sizes.values())


def shared_tokens(path: Path) -> SharedTokens:
    """The prepared token file at `path`. Raises InputError where it is not prepared."""
    found = read_tree(path, read_header(path))
    if found is None:
        raise InputError(f"{path} is not prepared as it stands; say `bamboo prepare JOB`")
    facts, leaves = found
    files = {ending: beside(path, ending) for ending in FILES}
    try:
        sizes = {
            ending: file.stat().st_size
            for ending, file in files.items()
            if ending != DOCUMENTS or facts.documents
        }
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}; put it back") from error
    return SharedTokens(path=path, facts=facts, leaves=leaves, sizes=sizes)


def keys_of(digest: str) -> tuple[str, ...]:
    """The objects that the instances of a run read of it."""
    return tuple(f"{SHARED}{digest}/{TOKENS}{ending}" for ending in FILES)


def is_there(objects: ObjectStore, tokens: SharedTokens) -> bool:
    """Whether the bucket has all of it. Raises StorageUnavailable."""
    sizes = objects.sizes(f"{tokens.folder}/")
    # Header and tree of the same tokens may say more or less that no run reads.
    wanted = {f"{tokens.folder}/{TOKENS}{ending}": ending for ending in tokens.sizes}
    return f"{tokens.folder}/{WHOLE}" in sizes and all(
        name in sizes and (ending not in _LARGE or sizes[name] == tokens.sizes[ending])
        for name, ending in wanted.items()
    )


def upload(objects: ObjectStore, tokens: SharedTokens) -> None:
    """Bring it there. Raises InputError where the file is not what was prepared, or changes
    meanwhile, StorageUnavailable."""
    before = _stamps(tokens)
    _compare(tokens)
    for ending in tokens.sizes:
        objects.put_file(f"{tokens.folder}/{TOKENS}{ending}", beside(tokens.path, ending))
    if _stamps(tokens) != before:
        raise InputError(f"{tokens.path} has changed while it was uploaded; launch again")
    sizes = {f"{TOKENS}{ending}": size for ending, size in tokens.sizes.items()}
    text = json.dumps({"schema_version": SCHEMA_VERSION, "bytes": sizes})
    objects.put_new(f"{tokens.folder}/{WHOLE}", text.encode())


def _stamps(tokens: SharedTokens) -> list[tuple[int, int, int]]:
    try:
        found = [os.stat(beside(tokens.path, ending)) for ending in tokens.sizes]
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}; put it back") from error
    return [(one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in found]


def _compare(tokens: SharedTokens) -> None:
    split = chunks_of(tokens.sizes[""]) * HASH_BYTES
    for ending, leaves in (("", tokens.leaves[:split]), (DOCUMENTS, tokens.leaves[split:])):
        if not leaves:
            continue
        path = beside(tokens.path, ending)
        try:
            with open_named(path) as file:
                for at in range(0, len(leaves), HASH_BYTES):
                    if leaf(file.read(CHUNK_BYTES)) != leaves[at : at + HASH_BYTES]:
                        raise InputError(
                            f"{path} is not what was prepared: chunk {at // HASH_BYTES} has "
                            "another hash; put it back as it was, or say `bamboo prepare JOB`"
                        )
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; put it back") from error


# ---------------------------------------------------------------- where a run reads its tokens


def place_name(digest: str) -> str:
    """The object, among what a run starts from, that says where the data of this digest lie."""
    return f"{SHARED}{digest}/{PLACE}"


def put_place(begins: ObjectStore, digest: str, place: Place) -> None:
    """Say where the tokens of a run with data of this digest lie. Raises StorageUnavailable."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PLACE
        write_whole(path, place.to_json())
        begins.put_file(place_name(digest), path)


def read_place(objects: ObjectStore, name: str) -> Place | None:
    """What `put_place` wrote into this object; None: it is not there. Raises StorageUnavailable,
    DamagedData."""
    text = objects.get(name)
    return None if text is None else Place.from_json(text, name=f"{name} of the run")


def far_tokens(
    begins: ObjectStore, digest: str, folder: Path, *, bucket: OpenObjects | None
) -> FarTokens | None:
    """The tokens of a run with data of this digest, of which header and hashes are brought into a
    folder now, and the rest when it is read; None: the data are no tokens. `bucket` opens an
    `s3://` address. Raises StorageUnavailable, DamagedData."""
    place = read_place(begins, place_name(digest))
    if place is None:
        return None
    return read_there(place, open_objects(place.url, bucket=bucket), folder)


def fetch_tokens(
    begins: ObjectStore, digest: str, folder: Path, *, bucket: OpenObjects | None
) -> Path | None:
    """The same, of which everything is brought. Raises as `far_tokens`."""
    place = read_place(begins, place_name(digest))
    if place is None:
        return None
    objects = open_objects(place.url, bucket=bucket)
    folder.mkdir(parents=True, exist_ok=True)
    for ending in place.sizes:
        fetch(objects, place, ending, folder / f"{TOKENS}{ending}")
    return folder / TOKENS


# ---------------------------------------------------------------- what a bucket has of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Tokens that a bucket has for runs."""

    digest: str
    size_bytes: int
    whole: bool
    """Otherwise a launch that ended too early has left it, or is uploading it now."""
    runs: tuple[str, ...]
    """The runs that read it: those that go on, and those whose launcher was killed."""


def kept_in(objects: ObjectStore, *, starts: str) -> tuple[Kept, ...]:
    """What the whole bucket has of them, by digest. `starts` is the folder of what runs start from.
    Raises StorageUnavailable."""
    sizes: dict[str, dict[str, int]] = {}
    for name, size_bytes in objects.sizes(SHARED).items():
        digest, _, rest = name.removeprefix(SHARED).partition("/")
        if _DIGEST.fullmatch(digest):
            sizes.setdefault(digest, {})[rest] = size_bytes
    readers = _readers(objects, starts) if sizes else {}
    return tuple(
        Kept(
            digest=digest,
            size_bytes=sum(found.values()),
            whole=WHOLE in found,
            runs=readers.get(digest, ()),
        )
        for digest, found in sorted(sizes.items())
    )


def _readers(objects: ObjectStore, starts: str) -> dict[str, tuple[str, ...]]:
    """Digest -> the runs that say that they read its tokens."""
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(objects.sizes(starts)):
        place = read_place(objects, name) if name.endswith(f"/{PLACE}") else None
        if place is not None:
            # A job may name shared tokens by their address, too.
            digest = place.digest or place.url.rpartition("/")[2]
            run = name.removeprefix(starts).partition("/")[0]
            found[digest] = (*found.get(digest, ()), run)
    return found


def remove(objects: ObjectStore, kept: Kept, *, starts: str) -> None:
    """Delete these tokens from the whole bucket; may be called again after it was interrupted.
    Raises InputError where a run reads them, StorageUnavailable."""
    folder = f"{SHARED}{kept.digest}/"
    mark = objects.get(f"{folder}{WHOLE}")
    objects.delete(f"{folder}{WHOLE}")
    runs = _readers(objects, starts).get(kept.digest, ())
    if runs:
        if mark is not None:
            objects.put_new(f"{folder}{WHOLE}", mark)
        raise InputError(
            f"the data {kept.digest[:12]} stay: {', '.join(runs)} read them; `bamboo stop "
            f"{runs[0]}` ends that run"
        )
    for name in objects.sizes(folder):
        objects.delete(name)
