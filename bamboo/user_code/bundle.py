"""The code of a run in its folder: written once, at the claim; checked and loaded by everybody who
builds the model.

    <run>/code/manifest.json     what is there, with digests
    <run>/code/0/...             the folder that the model's module is imported from
    <run>/code/1/... and so on   other folders that it imports from, or reads files of
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from bamboo.errors import InputError
from bamboo.named_files import sha256_of, what_is_wrong
from bamboo.new_files import write_whole
from bamboo.user_code.guard import guarded
from bamboo.user_code.loading import Entry, load_entry
from bamboo.user_code.manifest import Manifest


class DamagedCode(InputError):
    """The code that a run took along is not what it was, or is not there."""


CODE_FOLDER = "code"
"""In the folder of a run."""
MANIFEST = "manifest.json"
LAUNCH_ANEW = "launch the job again to train what is there now"


def write_bundle(manifest: Manifest, folder: Path) -> None:
    """Copy every file from where it was at launch. Raises InputError when one has changed since it
    was read, or cannot be copied; the folder must not exist yet."""
    # One file may have been found by two paths.
    for file in {file.path: file for file in manifest.files}.values():
        target = folder / file.path
        with _taking(Path(file.origin)):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.origin, target)
            found = sha256_of(target)
            target.chmod(0o400)
        if found != file.sha256:
            raise InputError(f"{file.origin} was changed while the job was looked at; launch again")
    with _taking(folder / MANIFEST):
        # It holds values of environment variables.
        write_whole(folder / MANIFEST, manifest.to_json().encode())


@contextlib.contextmanager
def _taking(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{file}: {error.strerror}, and the run is to take this file along; make it readable, "
            "and room for it, and launch again"
        ) from error


def read_manifest(folder: Path) -> Manifest:
    """Of the code in this folder. Raises DamagedCode when it is missing or damaged."""
    path = folder / MANIFEST
    wrong = what_is_wrong(path)
    if wrong:
        raise DamagedCode(
            f"{path}: {wrong}; the run's own copy of its code is needed to train or verify it"
        )
    try:
        return Manifest.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedCode(f"{path} is damaged: {error}; put it back, or {LAUNCH_ANEW}") from error


def identity_here(folder: Path) -> dict[str, Any]:
    """What `Manifest.identity` says, of the files and distributions that are here now. Raises
    InputError when the manifest cannot be read."""
    manifest = read_manifest(folder)
    return manifest.identity() | {
        "files": {file.path: _digest(folder / file.path) for file in manifest.files},
        "requires": {name: _version(name) for name in sorted(manifest.requires)},
    }


def check_identity(folder: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The identity here, where it is that of the run. Raises DamagedCode with the first file or
    distribution that is another one."""
    if not wanted:
        raise DamagedCode(
            f"{folder}: the run's identity says nothing of its code, so it is of an older release; "
            "use that one"
        )
    here = identity_here(folder)
    for path in sorted(wanted["files"].keys() | here["files"].keys()):
        if wanted["files"].get(path) != here["files"].get(path):
            what = "is missing or no file" if here["files"].get(path) is None else "was changed"
            raise DamagedCode(
                f"{folder / path} {what} after the launch of the run, which trains with what "
                f"it took along; put it back, or {LAUNCH_ANEW}"
            )
    if wanted["environment"] != here["environment"]:
        raise DamagedCode(
            f"{folder / MANIFEST} has other environment variables than the run was launched with; "
            f"put it back, or {LAUNCH_ANEW}"
        )
    for name in sorted(wanted["requires"].keys() | here["requires"].keys()):
        there, now = wanted["requires"].get(name), here["requires"].get(name)
        if there != now:
            raise DamagedCode(
                f"the model of this run imports {name} {there}, and {now or 'no version'} is "
                f"installed here; install {name}=={there}, or {LAUNCH_ANEW}"
            )
    return here


def load_bundle(folder: Path) -> ModuleType:
    """Load the model's module from a run's code, and refuse local code from elsewhere from now on.
    Raises DamagedCode when the bundle is damaged, else what the code raises."""
    manifest = read_manifest(folder)
    folder = Path(os.path.abspath(folder))
    search = tuple(folder / path for path in manifest.search)
    guarded(folder, manifest)
    return load_entry(Entry(name=manifest.entry, file=folder / manifest.entry_path, search=search))


def _digest(file: Path) -> str | None:
    try:
        return sha256_of(file) if file.is_file() else None
    except OSError:
        return None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
