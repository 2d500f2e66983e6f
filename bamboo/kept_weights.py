"""The weights that a run begins with, as they lie in its folder: a manifest of digests beside them.

    <run>/init/manifest.json     {schema_version, tensors: {name: sha256}, ...}
    <run>/init/*.safetensors     of another run one file a layer, of a Hugging Face model its files

Rule: a name stands for one SHA-256 of the tensor's raw bytes, and one digest over all of them is
part of the run's semantics. Nothing here needs torch.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bamboo.errors import InputError
from bamboo.named_files import open_named, what_is_wrong
from bamboo.topology.strategy import canonical_json

INIT_FOLDER = "init"
"""In the folder of a run."""
MANIFEST = "manifest.json"
HF_FOLDER = "hf"
"""In the code that a run takes along: what it needs of a Hugging Face model beside its weights."""
CONFIG = "config.json"
"""In the folder of a Hugging Face model, like the files below."""
ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MOST_BYTES = 2**28
PUT_BACK = "the weights that the run begins with must be put back"
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What a damaged manifest, index or header can raise while it is read."""
NAMED = 3
"""How many tensors an error names."""


def digest_of(tensors: Mapping[str, str]) -> str:
    """One digest of all weights, given as name -> SHA-256."""
    return hashlib.sha256(canonical_json(dict(tensors)).encode()).hexdigest()


def kept_tensors(folder: Path, digest: str) -> Mapping[str, str]:
    """Name -> SHA-256 of the weights in the folder of a run. Raises InputError unless the manifest
    there is that of the weights with this digest."""
    path = folder / MANIFEST
    try:
        with open_named(path, follow=False) as file:
            tensors: dict[str, str] = json.loads(file.read(_MOST_BYTES))["tensors"]
        found = digest_of(tensors)
    except OSError as error:
        raise damaged(path, str(error.strerror)) from error
    except DAMAGE as error:
        raise damaged(path, str(error)) from error
    if found != digest:
        raise damaged(path, f"it names weights of digest {found[:12]}, not {digest[:12]}")
    return tensors


def damaged(path: Path, why: str) -> InputError:
    """The error of a run whose initial weights are not what they were."""
    return InputError(f"{path}: {why}; {PUT_BACK}")


def some_of(names: Sequence[str]) -> str:
    """`a, b, c and 4 more`, for an error about tensors."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files with the weights of the Hugging Face model in this folder, as its index names them;
    () where it has none, and the model begins with values that are drawn. Raises InputError where a
    file is missing, the index cannot be read, or the weights are in another format."""
    index = folder / INDEX
    if (folder / ONE_FILE).exists():
        return (folder / ONE_FILE,)
    if not index.exists():
        others = sorted(path.name for path in folder.glob("*.bin"))
        if others:
            raise InputError(
                f"{folder} has weights as {others[0]}, a format that can run code, and none as "
                "safetensors; load it with transformers and save it again with save_pretrained"
            )
        return ()
    try:
        with open_named(index) as file:
            names = sorted(set(json.loads(file.read(_MOST_BYTES))["weight_map"].values()))
        files = tuple(folder / name for name in names if Path(name).name == name)
        if len(files) < len(names):
            raise ValueError("it names a file outside of its folder")
    except OSError as error:
        raise InputError(f"{index}: {error.strerror}; make it readable") from error
    except DAMAGE as error:
        raise InputError(
            f"{index}: is no index of weights ({error}); get the folder again"
        ) from error
    for path in files:
        if wrong := what_is_wrong(path):
            raise InputError(f"{index} names {path.name}: {wrong}; get the folder again")
    return files
