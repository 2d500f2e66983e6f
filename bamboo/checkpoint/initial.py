"""The weights that a run begins with when they are another run's; they are kept in the run's
folder.

    init/layer-00000.safetensors …   param/0.<name> …, without moments
    init/manifest.json               {schema_version, run, step, tensors: {name: sha256}}

Rule: a layer's tensors lie in a file of their own, so a node that builds a stage reads only its own
layers. What was read is compared with the digest in the run's semantics.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo.checkpoint.final import tensor_sha256
from bamboo.checkpoint.manifest import layer_of
from bamboo.checkpoint.tensor_file import Place, packed, places
from bamboo.errors import InputError
from bamboo.far_weights import FarWeights
from bamboo.kept_weights import (
    DAMAGE,
    MANIFEST,
    PUT_BACK,
    damaged,
    digest_of,
    kept_tensors,
)
from bamboo.named_files import open_named
from bamboo.new_files import write_whole

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA_VERSION = 1
PARAM = "param/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights that a run begins with."""

    run: str
    """The run that they are of; `dcp:FOLDER` where another program wrote them; empty where they are
    those in the folder of a Hugging Face model."""
    step: int
    """Steps that that run had taken; 0 without one."""
    tensors: Mapping[str, str]
    """Global name of a parameter, such as `3.weight` -> SHA-256 of its raw bytes."""
    shapes: Mapping[str, tuple[str, tuple[int, ...]]]
    """The parameter's type, such as `F32`, and its shape."""

    @property
    def digest(self) -> str:
        """One digest of all weights, whichever run they are from and however they were cut."""
        return digest_of(self.tensors)


def weights_in(files: Sequence[Path], *, run: str, step: int) -> Weights:
    """The weights in the files of a final state, or in the shards of a checkpoint. Raises
    InputError when a file cannot be read."""
    tensors, shapes = {}, {}
    for name, place, data in _parameters(files):
        tensors[name] = hashlib.sha256(data).hexdigest()
        shapes[name] = (place.dtype, place.shape)
    return Weights(run=run, step=step, tensors=tensors, shapes=shapes)


def keep_weights(files: Sequence[Path], weights: Weights, folder: Path) -> None:
    """Write the weights into a run's folder, the manifest last. Raises InputError when they have
    changed since they were read, and OSError."""
    folder.mkdir()
    layers: dict[int, dict[str, tuple[Place, bytes]]] = {}
    for name, place, data in _parameters(files):
        if hashlib.sha256(data).hexdigest() != weights.tensors.get(name):
            raise InputError(
                f"{name} of the weights that the run begins with has changed since they were "
                "looked at; launch again"
            )
        layers.setdefault(layer_of(PARAM + name), {})[PARAM + name] = (place, data)
    for layer, tensors in layers.items():
        write_whole(folder / _layer_file(layer), packed(tensors))
    body = {
        "schema_version": SCHEMA_VERSION,
        "run": weights.run,
        "step": weights.step,
        "tensors": dict(weights.tensors),
    }
    write_whole(folder / MANIFEST, (json.dumps(body, indent=1) + "\n").encode())


def load_layers(folder: Path, layers: Iterable[int], *, digest: str) -> "dict[str, Tensor]":
    """The parameters of these layers, by global name, from a run's folder. Raises InputError when
    they do not have this digest."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    kept = kept_tensors(folder, digest)
    out: dict[str, Tensor] = {}
    wanted = set(layers)
    for layer in sorted(wanted & {layer_of(PARAM + name) for name in kept}):
        path = folder / _layer_file(layer)
        try:
            found = load_file(path)
        except (OSError, SafetensorError) as error:
            raise damaged(path, str(error)) from error
        for name, tensor in found.items():
            short = name.removeprefix(PARAM)
            if tensor_sha256(tensor) != kept.get(short):
                raise damaged(path, f"{name} is not what was written")
            # In a file it lies at any byte, and bits may follow that.
            out[short] = tensor.clone()
    lacking = [n for n in kept if layer_of(PARAM + n) in wanted and n not in out]
    if lacking:
        raise damaged(folder, f"{min(lacking)} is not there")
    return out


def far_layers(weights: FarWeights, layers: Iterable[int]) -> "dict[str, Tensor]":
    """The parameters of these layers, by global name, from a run's bucket. Raises DamagedData when
    they are not those of the launch, StorageUnavailable."""
    from safetensors.torch import load

    wanted = set(layers)
    out: dict[str, Tensor] = {}
    for name, at in weights.tensors.items():
        if layer_of(PARAM + name) in wanted:
            data = weights.read(name)
            place = Place(dtype=at.dtype, shape=at.shape, begin=0, end=len(data))
            # In a file it lies at any byte, and bits may follow that.
            out[name] = load(packed({name: (place, bytes(data))}))[name].clone()
    return out


def all_layers(folder: Path, *, digest: str) -> Iterator["dict[str, Tensor]"]:
    """The parameters of one layer after the other, named as in the final files. Raises the same
    errors as `load_layers`."""
    for layer in sorted({layer_of(PARAM + name) for name in kept_tensors(folder, digest)}):
        held = load_layers(folder, [layer], digest=digest)
        yield {PARAM + name: tensor for name, tensor in held.items()}


def check_weights(folder: Path, *, digest: str) -> None:
    """Read all of them, without torch. Raises the same errors as `load_layers`."""
    kept = kept_tensors(folder, digest)
    files = (folder / _layer_file(n) for n in sorted({layer_of(PARAM + name) for name in kept}))
    found = {
        name: hashlib.sha256(data).hexdigest()
        for name, _, data in _parameters(files, remedy=PUT_BACK)
    }
    wrong = [name for name in kept.keys() | found.keys() if kept.get(name) != found.get(name)]
    if wrong:
        raise damaged(folder, f"{min(wrong)} is not what was written")


def _parameters(
    files: Iterable[Path], *, remedy: str = "take another step of that run"
) -> Iterator[tuple[str, Place, bytes]]:
    """Global name, place and raw bytes of each parameter, one after the other."""
    for path in files:
        try:
            with open_named(path, follow=False) as file:
                for name, place in places(file).items():
                    if name.startswith(PARAM):
                        file.seek(place.begin)
                        yield name.removeprefix(PARAM), place, file.read(place.end - place.begin)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; {remedy}") from error
        except DAMAGE as error:
            raise InputError(f"{path}: is damaged ({error}); {remedy}") from error


def _layer_file(layer: int) -> str:
    return f"layer-{layer:05d}.safetensors"
