"""The final state of a run: one safetensors file per stage, and a manifest with every hash.

    final/stage-00.safetensors …    param/<layer>.<name>  exp_avg/<layer>.<name>  exp_avg_sq/…
    final/manifest.json             {schema_version, step, files: {name: sha256},
                                     tensors: {name: sha256 of the raw bytes}}

Rule: a file gets its name only with its whole content (it is written under another name, then
renamed). Reading and hashing need no torch: safetensors is a length, a JSON header and the bytes.
"""

import hashlib
import json
import os
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bamboo.checkpoint.tensor_file import hashed
from bamboo.errors import InputError, StorageUnavailable
from bamboo.named_files import open_named
from bamboo.new_files import whole_file

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
_STAGE_FILE = re.compile(r"stage-\d{2,6}\.safetensors", re.ASCII)
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What a damaged header can raise besides our own errors."""
_MOST_MANIFEST_BYTES = 2**28
METADATA = "bamboo"
"""Key of the header's own entry, JSON {schema_version, step} and, of a stage that has any,
`constant`: the names of the tensors that never change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """The contents of a folder of final files."""

    step: int
    """Completed steps."""
    tensors: dict[str, str]
    """SHA-256 of each tensor's raw bytes, computed from the files as they lie there."""
    damaged: tuple[str, ...]
    """Files whose content is not what the manifest says."""


def stage_file(stage: int) -> str:
    """The file name of a stage."""
    return f"stage-{stage:02d}.safetensors"


def write_stage(
    folder: Path | str,
    stage: int,
    tensors: Mapping[str, "Tensor"],
    step: int,
    constant: Collection[str] = (),
) -> dict[str, Any]:
    """Write one stage's tensors after `step` completed steps, atomically; writing twice is safe.
    `constant`: the names of those that never change, where the file is to say so.

    Returns what `describe` says of it, which the manifest collects. Raises OSError or
    StorageUnavailable when it cannot be written; then it leaves nothing behind.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / stage_file(stage)
    aside = folder / f".{uuid.uuid4().hex}"  # nobody can place a link there beforehand
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, aside, metadata=metadata_of(step, constant))
        _settle(aside, path)
    except SafetensorError as error:  # safetensors' own error, raised for a full disk as well
        raise StorageUnavailable(f"{path}: {error}; make room, or take another folder") from error
    finally:
        aside.unlink(missing_ok=True)
    return describe(path)


def metadata_of(step: int, constant: Collection[str] = ()) -> dict[str, str]:
    """The metadata of a stage's file."""
    # There is only one entry, because safetensors writes several in random order, and equal state
    # must give equal bytes.
    about: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "step": step}
    return {METADATA: json.dumps(about | ({"constant": sorted(constant)} if constant else {}))}


def write_manifest(folder: Path | str, *, stages: int, step: int) -> dict[str, Any]:
    """Hash the files of all stages and write the manifest; returns its content.

    Raises InputError when a stage's file is missing, damaged, or of another step.
    """
    folder = Path(folder)
    described = [describe(folder / stage_file(stage)) for stage in range(stages)]
    for one in described:
        if one["step"] != step:
            raise InputError(
                f"{folder / one['file']}: is of step {one['step']}, not {step}; "
                "take the files of one run"
            )
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "step": step,
        "files": {one["file"]: one["sha256"] for one in described},
        "tensors": {n: h for one in described for n, h in sorted(one["tensors"].items())},
    }
    with whole_file(folder / MANIFEST) as file:
        file.write((json.dumps(manifest, indent=1) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
    return manifest


def read_final(folder: Path | str) -> Final:
    """Read the manifest and hash every tensor in the files that it names.

    Raises InputError when there is no manifest, when it has another schema, or when a file cannot
    be read.
    """
    path = Path(folder) / MANIFEST
    if path.parent.is_symlink():
        raise InputError(f"{path.parent}: is a link; name the folder that it leads to")
    try:
        with open_named(path, follow=False) as file:
            manifest = json.loads(file.read(_MOST_MANIFEST_BYTES))
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; only a run that ended in order has a final state"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON ({error}); the run must write it again") from error
    if not isinstance(manifest, dict) or manifest.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{path}: has another schema than {SCHEMA_VERSION}; use the release that wrote it"
        )
    files, step = manifest.get("files"), manifest.get("step")
    if not isinstance(files, dict) or type(step) is not int or step < 0:
        raise InputError(f"{path}: lacks its files or its step; the run must write it again")
    tensors: dict[str, str] = {}
    damaged = []
    for name, sha256 in files.items():
        if not _STAGE_FILE.fullmatch(name):
            # The name is opened below, and could lead out of the folder.
            raise InputError(f"{path}: {name!r} is no file of a stage; the run must write it again")
        found = describe(path.parent / name)
        if twice := tensors.keys() & found["tensors"].keys():
            raise InputError(f"{path}: two of its files hold {min(twice)!r}; take those of one run")
        tensors |= found["tensors"]
        if found["sha256"] != sha256:
            damaged.append(name)
    return Final(step=step, tensors=tensors, damaged=tuple(damaged))


def tensor_sha256(tensor: "Tensor") -> str:
    """SHA-256 of a tensor's raw bytes, as they would lie in a file."""
    from torch import uint8

    whole = tensor.detach().cpu().contiguous().view(-1).view(uint8)
    return hashlib.sha256(whole.numpy().data).hexdigest()


def describe(path: Path) -> dict[str, Any]:
    """A stage's file as it lies there: {file, sha256, step, constant: names of tensors, tensors:
    {name: sha256 of the raw bytes}}. Raises InputError when it is missing or is no final state."""
    try:
        with open_named(path, follow=False) as file:
            found = hashed(file)
        about = json.loads(found.metadata[METADATA])
        step, constant = int(about["step"]), sorted(about.get("constant", ()))
        if strange := set(constant) - found.tensors.keys():
            raise ValueError(f"it has no {min(strange)!r}")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; the final state is incomplete") from error
    except _DAMAGE as error:
        raise InputError(f"{path}: is no final state ({error}); it is damaged") from error
    return {
        "file": path.name,
        "sha256": found.sha256,
        "step": step,
        "constant": constant,
        "tensors": found.tensors,
    }


def _settle(aside: Path, path: Path) -> None:
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.replace(path)
