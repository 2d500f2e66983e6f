"""The weights of a Hugging Face model, in its folder or in a run's bucket, a tensor at a time.

Rule: a layer reads its own tensors and no others. In a run each is compared with the digest that it
had at launch.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.far_weights import FarWeights
from bamboo.kept_weights import damaged, kept_tensors, some_of, weight_files


class Stored(Protocol):
    """Where one tensor is kept."""

    def shape(self) -> tuple[int, ...]:
        """By what is known of it without its values."""
        ...

    def tensor(self) -> Tensor:
        """Its values. Raises InputError when they are not those of the launch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InFile:
    """In a file of this machine; in a run its values have this SHA-256."""

    path: Path
    name: str
    sha256: str | None

    def shape(self) -> tuple[int, ...]:
        with safe_open(self.path, framework="pt") as file:
            return tuple(file.get_slice(self.name).get_shape())

    def tensor(self) -> Tensor:
        try:
            with safe_open(self.path, framework="pt") as file:
                found: Tensor = file.get_tensor(self.name)
        except (OSError, SafetensorError) as error:
            raise damaged(self.path, str(error)) from error
        if self.sha256 is not None and _sha256(found) != self.sha256:
            raise damaged(self.path, f"{self.name} is not what was written")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class InBucket:
    """In a file of the run's bucket, of which its own bytes are read alone."""

    weights: FarWeights
    name: str

    def shape(self) -> tuple[int, ...]:
        return self.weights.tensors[self.name].shape

    def tensor(self) -> Tensor:
        data = self.weights.read(self.name)
        kind = _TYPES[self.weights.tensors[self.name].dtype]
        flat = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
        return flat.reshape(self.shape())


_TYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U8": torch.uint8, "BOOL": torch.bool},
}


class Pretrained:
    """The tensors of a folder by the names that they have in the model."""

    def __init__(self, places: Mapping[str, Stored]) -> None:
        self._places = places

    @property
    def names(self) -> Set[str]:
        """All of them."""
        return self._places.keys()

    def tensor(self, name: str) -> Tensor:
        """The values of one tensor. Raises InputError when they are not those of the launch."""
        return self._places[name].tensor()

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one tensor."""
        return self._places[name].shape()


def pretrained_of(
    job: JobConfig, whole: PreTrainedModel, far: FarWeights | None = None
) -> Pretrained | None:
    """The weights that a job's model begins with; None where its layers draw them, or they are
    another run's. Raises InputError where they cannot be read."""
    if job.train.init:
        return None
    places = _in_bucket(whole, far) if far is not None else _in_folder(job, whole)
    if not places:
        return None
    for user, owner in ties_of(whole).items():
        if owner in places:  # files have one of two that are tied
            places.setdefault(user, places[owner])
    return Pretrained(places)


def _in_bucket(whole: PreTrainedModel, far: FarWeights) -> dict[str, Stored]:
    places: dict[str, Stored] = {}
    for key, at in far.tensors.items():
        places[_in_model(whole, key, Path(at.file), places)] = InBucket(weights=far, name=key)
    return places


def _in_folder(job: JobConfig, whole: PreTrainedModel) -> dict[str, Stored]:
    folder = Path(job.pretrained) if job.pretrained else job.named(job.model.hf_folder)
    kept = kept_tensors(folder, job.weights) if job.pretrained else None
    places: dict[str, Stored] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                keys = [*file.keys()]
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: is damaged ({error}); get the folder again") from error
        for key in keys:
            sha256 = None if kept is None else kept.get(key, "")
            places[_in_model(whole, key, path, places)] = InFile(path=path, name=key, sha256=sha256)
    return places


def ties_of(whole: PreTrainedModel) -> Mapping[str, str]:
    """The name of each tied parameter -> that of its owner."""
    return dict(getattr(whole, "all_tied_weights_keys", None) or {})


def check_names(
    job: JobConfig,
    whole: PreTrainedModel,
    pretrained: Pretrained,
    wanted: Mapping[str, torch.Size],
) -> None:
    """Raises InputError unless the folder has the tensors of the model, no more and no less, in
    their shapes. Of two that are tied it may have one or both."""
    ignored = [*(whole._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq"]
    lacking = [name for name in wanted if name not in pretrained.names]
    others = sorted(
        name
        for name in pretrained.names - wanted.keys() - ties_of(whole).keys()
        if not any(re.search(one, name) for one in ignored)
    )
    kind = type(whole).__name__
    if lacking:
        raise _refuse(job, f"its weights lack {some_of(lacking)}, which {kind} has")
    if others:
        raise _refuse(job, f"its weights have {some_of(others)}, which {kind} has not")
    for name in sorted(wanted):
        if (shape := pretrained.shape(name)) != tuple(wanted[name]):
            raise _refuse(
                job, f"{name} has shape {list(shape)}, and {list(wanted[name])} by its config.json"
            )


def _refuse(job: JobConfig, problem: str) -> InputError:
    return InputError.at(
        file=job.file,
        key="model.model",
        value=job.model.model,
        problem=problem,
        remedy="load the model as this class with transformers, and save_pretrained it into a "
        "folder",
    )


def _in_model(whole: PreTrainedModel, key: str, path: Path, others: Collection[str]) -> str:
    """What a tensor of a file is called in the model: files keep older names. Raises InputError for
    one that transformers makes of several, or several of one, and for a second of one name."""
    transforms = get_model_conversion_mapping(whole)
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    name: str
    name, converter = rename_source_key(key, renamings, converters)
    if converter is not None:
        raise InputError(
            f"{path}: {key} is stored in another form than {type(whole).__name__} has it in; leave "
            "the weights out, or take a family whose tensors are stored as they are"
        )
    if name in others:
        raise InputError(
            f"{path}: {key} is {name} of {type(whole).__name__}, and so is another tensor of the "
            "folder; get the folder again"
        )
    return name


def _sha256(tensor: Tensor) -> str:
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    found: str = hashlib.sha256(flat.numpy().data).hexdigest()  # of a file, so on the host
    return found
