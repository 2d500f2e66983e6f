"""What a run takes along, for nodes without its folder: in the bucket, below the prefix of the run
that its launcher alone writes, each by its digest.

    code/<digest>.zip         the user's code with its manifest, by the digest of its identity
    weights/<digest>/...      the weights that it begins with (`bamboo/far_weights.py`)
    wheels/<digest>/...       the wheels that the code needs (`bamboo/user_code/wheels.py`)

Rule: who fetches compares each file with what the run's semantics say, before it is used.
"""

import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

from bamboo.checkpoint.initial import PARAM
from bamboo.checkpoint.tensor_file import places
from bamboo.errors import DamagedData, InputError
from bamboo.far_weights import PLACES, SCHEMA_VERSION, FarTensor
from bamboo.kept_weights import MANIFEST, damaged, kept_tensors
from bamboo.named_files import open_named
from bamboo.new_files import whole_file, write_whole
from bamboo.ports import ObjectStore
from bamboo.topology.strategy import canonical_json
from bamboo.user_code.bundle import DamagedCode, check_identity, read_manifest
from bamboo.user_code.wheels import check_wheels, kept_wheels

_NOT_BROUGHT = "is not what the launch has brought"
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)
"""A fixed date, since a real one would make each archive different."""


def put_code(objects: ObjectStore, folder: Path) -> None:
    """Store the code that a run keeps in this folder. Raises InputError, StorageUnavailable,
    OSError."""
    manifest = read_manifest(folder)
    check_identity(folder, manifest.identity())
    with tempfile.TemporaryDirectory() as aside:
        archive = Path(aside) / "code.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
            for path in (MANIFEST, *sorted({file.path for file in manifest.files})):
                entry = zipfile.ZipInfo(path, date_time=_FIRST_DAY)
                with open_named(folder / path) as file, packed.open(entry, "w") as to:
                    shutil.copyfileobj(file, to)
        objects.put_file(_code_name(manifest.identity()), archive)


def fetch_code(objects: ObjectStore, folder: Path, identity: Mapping[str, Any]) -> None:
    """Bring the code of a run with this identity into a folder, which is made. Raises DamagedCode
    where there is none, DamagedData, StorageUnavailable."""
    with tempfile.TemporaryDirectory() as aside:
        archive = Path(aside) / "code.zip"
        if not objects.fetch(_code_name(identity), archive):
            raise DamagedCode(
                "the code of the run is not in its bucket any more; resume the run, which brings it"
            )
        try:
            with zipfile.ZipFile(archive) as packed:
                for entry in packed.infolist():
                    _unpack(packed, entry, folder)
        except (zipfile.BadZipFile, ValueError) as error:
            raise DamagedData(f"{_code_name(identity)} {_NOT_BROUGHT}: {error}") from error


def _unpack(packed: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path) -> None:
    parts = PurePosixPath(entry.filename).parts
    if not parts or ".." in parts or entry.filename.startswith("/"):
        raise ValueError(f"{entry.filename!r} is no path below the folder of the code")
    target = folder.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with packed.open(entry) as file, whole_file(target) as to:
        shutil.copyfileobj(file, to)


def _code_name(identity: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(canonical_json(dict(identity)).encode()).hexdigest()
    return f"code/{digest}.zip"


def put_weights(objects: ObjectStore, folder: Path, digest: str) -> None:
    """Store the weights that a run keeps in this folder: their files, and where each tensor lies.
    Raises InputError, StorageUnavailable."""
    kept = kept_tensors(folder, digest)
    at = f"weights/{digest}"
    found: dict[str, FarTensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with open_named(path) as file:
                for written, place in places(file).items():
                    name = written if written in kept else written.removeprefix(PARAM)
                    found[name] = FarTensor(file=path.name, sha256=kept[name], **asdict(place))
        except (OSError, ValueError, KeyError) as error:
            raise damaged(path, str(error)) from error
        objects.put_file(f"{at}/{path.name}", path)
    for path in folder.glob("*.json"):  # their manifest, and an index
        objects.put_file(f"{at}/{path.name}", path)
    with tempfile.TemporaryDirectory() as aside:
        text = {
            "schema_version": SCHEMA_VERSION,
            "tensors": {k: asdict(v) for k, v in found.items()},
        }
        write_whole(Path(aside) / PLACES, json.dumps(text).encode())
        objects.put_file(f"{at}/{PLACES}", Path(aside) / PLACES)


def fetch_weights(objects: ObjectStore, folder: Path, digest: str) -> None:
    """Bring all of them into a folder, which is made, for one that trains all layers. They are
    compared where they are read. Raises StorageUnavailable."""
    _fetch_below(objects, f"weights/{digest}/", folder)


def put_wheels(objects: ObjectStore, folder: Path, digest: str) -> None:
    """Store the wheels that a run keeps in this folder. Raises InputError, StorageUnavailable."""
    for name in (MANIFEST, *kept_wheels(folder, digest).wheels):
        objects.put_file(f"wheels/{digest}/{name}", folder / name)


def fetch_wheels(objects: ObjectStore, folder: Path, digest: str) -> None:
    """Bring them into a folder, which is made, and compare each. Raises DamagedData for those that
    are not the run's, StorageUnavailable."""
    _fetch_below(objects, f"wheels/{digest}/", folder)
    try:
        check_wheels(folder, digest)
    except InputError as error:
        raise DamagedData(f"wheels/{digest} {_NOT_BROUGHT}") from error


def _fetch_below(objects: ObjectStore, prefix: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in objects.sizes(prefix):
        objects.fetch(name, folder / PurePosixPath(name).name)
