"""The weights in a Hugging Face model's folder, a tensor at a time.

Rule: a layer reads its own tensors and no others. In a run each is compared with the digest that it
had at launch.
"""

import hashlib
import re
from collections.abc import Mapping, Set
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.kept_weights import damaged, kept_tensors, weight_files

NAMED = 3
"""How many tensors an error names."""


class Pretrained:
    """The tensors of a folder by the names that they have in the model."""

    def __init__(
        self, places: Mapping[str, tuple[Path, str]], kept: Mapping[str, str] | None
    ) -> None:
        """`places`: name -> file, and the name in it. `kept`: name in a file -> SHA-256, in a
        run."""
        self._places = places
        self._kept = kept

    @property
    def names(self) -> Set[str]:
        """All of them."""
        return self._places.keys()

    def tensor(self, name: str) -> Tensor:
        """The values of one tensor. Raises InputError when they are not those of the launch."""
        path, there = self._places[name]
        try:
            with safe_open(path, framework="pt") as file:
                found: Tensor = file.get_tensor(there)
        except (OSError, SafetensorError) as error:
            raise damaged(path, str(error)) from error
        if self._kept is not None and _sha256(found) != self._kept.get(there):
            raise damaged(path, f"{there} is not what was written")
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one tensor, by its file's header."""
        path, there = self._places[name]
        with safe_open(path, framework="pt") as file:
            return tuple(file.get_slice(there).get_shape())


def pretrained_of(job: JobConfig, whole: PreTrainedModel) -> Pretrained | None:
    """The weights that a job's model begins with; None where its layers draw them, or they are
    another run's. Raises InputError where they cannot be read."""
    if job.train.init:
        return None
    folder = Path(job.pretrained) if job.pretrained else job.named(job.model.hf_folder)
    kept = kept_tensors(folder, job.weights) if job.pretrained else None
    places: dict[str, tuple[Path, str]] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                keys = [*file.keys()]
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: is damaged ({error}); get the folder again") from error
        places |= {_in_model(whole, key, path): (path, key) for key in keys}
    if not places:
        return None
    for user, owner in ties_of(whole).items():
        if owner in places:  # files have one of two that are tied
            places.setdefault(user, places[owner])
    return Pretrained(places, kept)


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
        raise _refuse(job, f"its weights lack {_some(lacking)}, which {kind} has")
    if others:
        raise _refuse(job, f"its weights have {_some(others)}, which {kind} has not")
    for name in sorted(wanted):
        if (shape := pretrained.shape(name)) != tuple(wanted[name]):
            raise _refuse(
                job, f"{name} has shape {list(shape)}, and {list(wanted[name])} by its config.json"
            )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _refuse(job: JobConfig, problem: str) -> InputError:
    return InputError.at(
        file=job.file,
        key="model.model",
        value=job.model.model,
        problem=problem,
        remedy="load the model as this class with transformers, and save_pretrained it into a "
        "folder",
    )


def _in_model(whole: PreTrainedModel, key: str, path: Path) -> str:
    """What a tensor of a file is called in the model: files keep older names. Raises InputError for
    one that transformers makes of several, or several of one."""
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
    return name


def _sha256(tensor: Tensor) -> str:
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    found: str = hashlib.sha256(flat.numpy().data).hexdigest()  # of a file, so on the host
    return found
