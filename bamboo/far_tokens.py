"""Token files in a bucket: where one lies, and reading it there.

A token file that a job names by `s3://BUCKET/PREFIX` has a stand-in on this machine: its header and
its hashes as they are there, files of its size that take no room, and beside them `.far`, the
`Place` (JSON). A process that opens the stand-in reads the tokens in the bucket, chunk by chunk.

Rule: who opens a bucket is chosen by the wiring, in each process that may read one (`open_with`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bamboo.errors import DamagedData, InputError
from bamboo.far_weights import asked
from bamboo.named_files import read_own
from bamboo.new_files import whole_file
from bamboo.ports import ObjectStore
from bamboo.token_files import DOCUMENTS, HEADER, TREE, FarFile, FarTokens, beside

TOKENS = "tokens"
"""The name of a token file that was brought."""
FAR = ".far"
SCHEMA_VERSION = 1
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_openers: list[tuple[Callable[[str, str], ObjectStore], str]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a token file lies."""

    url: str
    """A folder of a bucket."""
    name: str
    sizes: Mapping[str, int]
    """Bytes of each of its files, by ending."""
    digest: str = ""
    """Of the tokens that runs share; "": somebody else keeps them."""
    region: str = ""
    """Of the bucket; "": that of the reader."""

    @property
    def remedy(self) -> str:
        """What to do where a part of it is not what it was."""
        if self.digest:
            return f"`bamboo rm --data {self.digest[:12]}`, then launch again, which uploads it"
        return "put it there again as it was"

    def to_json(self) -> bytes:
        """For `from_json`."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, text: str | bytes, *, name: str) -> "Place":
        """What `to_json` gave, read from an object or file of this name. Raises DamagedData."""
        try:
            said = json.loads(text)
            return cls(
                url=str(said["url"]),
                name=str(said["name"]),
                sizes={str(ending): int(size) for ending, size in said["sizes"].items()},
                digest=str(said["digest"]),
                region=str(said["region"]),
            )
        except _DAMAGE as error:
            raise DamagedData(f"{name} is damaged: {error}; launch the job again") from error


def open_with(opener: Callable[[str, str], ObjectStore], *, program: str) -> None:
    """From now on this process reads buckets: `opener` takes an address and a region. `program` is
    the module of ours that runs another one in a process that does so, too."""
    _openers[:] = [(opener, program)]


def through(module: str) -> tuple[str, ...]:
    """The modules that run this one in a new process that reads buckets, if this one does."""
    return (*(program for _, program in _openers), module)


def opened(url: str, region: str) -> ObjectStore:
    """The bucket at this address. Raises InputError in a process that reads none."""
    if not _openers:
        raise InputError(f"{url}: this process reads no buckets; copy the tokens to this machine")
    opener, _ = _openers[0]
    return opener(url, region)


def place_of(path: Path) -> Place | None:
    """Where the tokens of this stand-in lie; None: it is a token file itself. Raises
    DamagedData."""
    far = beside(path, FAR)
    return Place.from_json(read_own(far), name=str(far)) if far.exists() else None


def read_far(path: Path, folder: Path) -> FarTokens | None:
    """The tokens of this stand-in, for this process alone, whose folder this is; None: it is a
    token file itself. Raises InputError, StorageUnavailable."""
    place = place_of(path)
    return None if place is None else read_there(place, opened(place.url, place.region), folder)


def read_there(place: Place, objects: ObjectStore, folder: Path) -> FarTokens:
    """The tokens of a place, of which header and hashes are brought into a folder now, and the rest
    when it is read. Raises StorageUnavailable, DamagedData where they are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / TOKENS
    far = {}
    for ending, size_bytes in place.sizes.items():
        if ending in (HEADER, TREE):
            fetch(objects, place, ending, beside(path, ending))
            continue
        make_room_for(beside(path, ending), size_bytes)
        far[ending] = FarFile(
            name=f"{place.url}/{place.name}{ending}",
            read=partial(_part, objects, place, ending),
            remedy=place.remedy,
        )
    return FarTokens(path=path, tokens=far[""], documents=far.get(DOCUMENTS))


def make_room_for(path: Path, size_bytes: int) -> None:
    """Make a file of this size that takes no room. Raises OSError."""
    with whole_file(path) as file:
        file.truncate(size_bytes)


def fetch(objects: ObjectStore, place: Place, ending: str, to: Path) -> None:
    """Bring one of its files. Raises StorageUnavailable, DamagedData where it is gone."""
    if not asked(lambda: objects.fetch(f"{place.name}{ending}", to)):
        raise _gone(place, ending)


def _part(objects: ObjectStore, place: Place, ending: str, begin: int, end: int) -> bytes:
    found = asked(lambda: objects.part(f"{place.name}{ending}", begin, end))
    if found is None:
        raise _gone(place, ending)
    return found


def _gone(place: Place, ending: str) -> DamagedData:
    return DamagedData(
        f"{place.url}/{place.name}{ending} is not in the bucket any more; {place.remedy}"
    )
