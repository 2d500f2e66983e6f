"""From a job with `model = "hf:PATH"` to its Workload.

Rule: what decides the bits is the folder's config.json, its weights, and the versions of the
libraries. A run takes the first along, keeps the second, and compares the third.
"""

import importlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedModel

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.far_weights import FarWeights
from bamboo.kept_weights import CONFIG, HF_FOLDER
from bamboo.models.hf.bert import bert
from bamboo.models.hf.family import Family
from bamboo.models.hf.gpt2 import gpt2
from bamboo.models.hf.plan import planned
from bamboo.models.hf.t5 import t5
from bamboo.models.hf.vit import vit
from bamboo.models.hf.weights import check_names, pretrained_of, ties_of
from bamboo.models.hf.whole import Layer, joined, without_memory
from bamboo.models.running import Tensors
from bamboo.models.workload import TiedParameter, Workload
from bamboo.named_files import sha256_of
from bamboo.user_code.manifest import CodeFile, Manifest

if TYPE_CHECKING:
    from bamboo.models.hf.lora import Adapters

ADAPTED: Mapping[str, Any] = {"bert": bert, "gpt2": gpt2, "t5": t5, "vit": vit}
"""`model_type` -> the family of a configuration, of those that have an adapter here."""


def hf_workload(job: JobConfig, weights: FarWeights | None = None) -> Workload:
    """The layers of the job's Hugging Face model. Nothing is read of its weights but their names;
    they lie in its folder, or are `weights`. Raises InputError for a folder that is no model, a
    family that cannot be cut into layers, and weights that are not the model's."""
    text = config_text(job)
    try:
        family, whole = whole_of(text)
    except _Refused as error:
        raise _refuse(job, *error.args) from None
    if family.takes == "images" and "data.source" not in job.own:
        raise InputError.at(
            file=job.file,
            key="data.source",
            value=job.data.source,
            problem=f"is text, and {type(whole).__name__} takes images",
            remedy='name data of yours: "file.py:data"',
        )
    _check_context(job, whole.config)
    pretrained = pretrained_of(job, whole, weights)
    adapters: Adapters | None = None
    if job.model.lora.rank:
        # peft takes seconds to import as well.
        lora = importlib.import_module("bamboo.models.hf.lora")
        lora.check_targets(job, whole)
        adapters = lora.Adapters(job)
    parts = family.parts(whole)
    ties = ties_of(whole)
    layers = [
        Layer(
            whole,
            part,
            pretrained=pretrained,
            adapters=adapters,
            draw=family.draw,
            same=_within(ties, part.holds),
        )
        for part in parts
    ]
    shapes = [layer.shapes() for layer in layers]
    tied = _tied(ties, shapes)
    if pretrained is not None:
        wanted = {name: shape for of_layer in shapes for name, shape in of_layer.items()}
        check_names(job, whole, pretrained, wanted)

    def uncut(layers: Sequence[nn.Module], inputs: Tensors) -> Tensor:
        model = joined(whole, layers, adapters).eval().to(inputs[0].device)
        return family.whole(model, inputs)

    return Workload(
        layers=layers,
        loss=family.loss,
        data=family.data,
        metrics=family.metrics,
        tied=tied,
        plain=True,
        vocabulary=getattr(whole.config, "vocab_size", 0),
        uncut=uncut,
        prefixes=("",) * len(layers),
    )


def preload(folder: str) -> None:
    """Import all that the model of this folder needs, and keep it without memory: a process that is
    forked from this one has both. What is wrong with the folder is said when a job is looked at."""
    try:
        whole_of((Path(folder) / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, _Refused):
        return


def along_with(job: JobConfig, code: Manifest | None) -> Manifest:
    """What the run takes along of the model, and of the user's own `code` where there is some."""
    file = job.named(job.model.hf_folder) / CONFIG
    config = CodeFile(
        path=f"{HF_FOLDER}/{CONFIG}",
        origin=os.path.abspath(file),
        sha256=sha256_of(file),
        bytes=file.stat().st_size,
    )
    libraries = ("transformers", *(("peft",) if job.model.lora.rank else ()))
    requires = {name: metadata.version(name) for name in libraries}
    if code is not None:
        files = tuple(sorted((*code.files, config), key=lambda one: one.path))
        return replace(code, files=files, requires={**code.requires, **requires})
    return Manifest(
        entry="",
        entry_path=config.path,
        search=(),
        folder=os.getcwd(),
        files=(config,),
        requires=requires,
        environment={},
        absent=(),
        present={},
        links={},
    )


class _Refused(Exception):
    """(problem, remedy) of a model that cannot be trained."""


def config_text(job: JobConfig) -> str:
    """The config.json of the job's model: the run's own, or that of the folder. Raises
    InputError."""
    kept = Path(job.code) / HF_FOLDER if job.code else job.named(job.model.hf_folder)
    try:
        return (kept / CONFIG).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{kept / CONFIG}: {error}; name a folder with a model") from error


@cache
def whole_of(text: str) -> tuple[Family, PreTrainedModel]:
    """The model of a config.json, without memory."""
    return _family(*config_of(text))


def config_of(text: str) -> tuple[str, Any]:
    """The model_type of a config.json, and its configuration."""
    try:
        values = json.loads(text)
        kind = values["model_type"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _Refused(
            f"its {CONFIG} names no model_type ({error})", "get the folder again"
        ) from error
    if kind not in CONFIG_MAPPING:
        raise _Refused(
            f"transformers {transformers.__version__} has no model_type {kind!r}, and code that a "
            "folder brings is not run",
            "install a release that has it, or take another family",
        )
    if values.get("quantization_config"):
        raise _Refused("its weights are quantized", "take the folder of the plain weights")
    try:
        config = CONFIG_MAPPING[kind].from_dict(values)
    except Exception as error:
        raise _Refused(f"its {CONFIG} is refused: {_line(error)}", "correct it") from error
    return kind, config


def _family(kind: str, config: Any) -> tuple[Family, PreTrainedModel]:
    adapted = ADAPTED.get(kind)
    if adapted is None and not config.base_model_pp_plan:
        raise _Refused(
            f"{kind} has neither a pipeline plan nor an adapter, so nobody knows its layers",
            f"take {', '.join(sorted({*ADAPTED, *_with_plan()}))}; or write build(job) in a file "
            "of yours",
        )
    config.use_cache = False
    config.dtype = torch.float32
    for attention in ("sdpa", "eager"):
        config._attn_implementation = attention
        family = (adapted or planned)(config)
        try:
            return family, without_memory(family.make)
        except Exception as error:
            if attention == "eager":
                words = f"transformers cannot make its model: {_line(error)}"
                raise _Refused(words, "correct its config.json, or take another family") from error
    raise AssertionError("one of the two attentions is made, or refused")


def _with_plan() -> list[str]:
    """The families of this release of transformers that publish a plan, by their sources."""
    models = Path(transformers.__file__).parent / "models"
    return [
        path.parent.name
        for path in models.glob("*/configuration_*.py")
        if re.search(
            r"^    base_model_pp_plan = \{", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]


def _check_context(job: JobConfig, config: Any) -> None:
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and job.model.context > most:
        raise InputError.at(
            file=job.file,
            key="model.context",
            value=job.model.context,
            problem=f"is longer than the model's {most} positions (max_position_embeddings)",
            remedy=f"take at most {most}",
        )


def _within(ties: Mapping[str, str], holds: Sequence[str]) -> dict[str, str]:
    """The tied parameters of which both names are in one layer."""

    def is_here(name: str) -> bool:
        return any(name.startswith(f"{path}.") for path in holds)

    return {name: other for name, other in ties.items() if is_here(name) and is_here(other)}


def _tied(
    ties: Mapping[str, str], shapes: Sequence[Mapping[str, torch.Size]]
) -> tuple[TiedParameter, ...]:
    """The parameters that are tied over layers."""
    place = {name: layer for layer, of_layer in enumerate(shapes) for name in of_layer}
    return tuple(
        TiedParameter(
            owner_layer=place[owner], owner_name=owner, user_layer=place[user], user_name=user
        )
        for user, owner in ties.items()
        if user in place and owner in place
    )


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _refuse(job: JobConfig, problem: str, remedy: str) -> InputError:
    return InputError.at(
        file=job.file, key="model.model", value=job.model.model, problem=problem, remedy=remedy
    )
