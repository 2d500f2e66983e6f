"""Writes what `from_pretrained` loads: a whole Hugging Face model, or adapters, from its layers.

Rule: the configuration is that of the folder that the model was made of; what training changed of
it for itself is not written.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from bamboo.config.tree import JobConfig
from bamboo.models.hf.parts import base_name
from bamboo.models.hf.whole import joined
from bamboo.models.hf.workload import config_of, config_text, whole_of

BASE = "base"
"""Where the model lies that adapters stand in, below their folder."""
ADAPTERS = "adapter_model.safetensors"
_IN_PEFT = "base_model.model."
_NAME = ".default."
"""Within the names of an adapter's parameters; peft leaves it out of a file."""


def save(job: JobConfig, layers: Sequence[nn.Module], folder: Path) -> None:
    """Write the job's model, made of these layers, into a folder: the whole, or its adapters, which
    stand in the model of the folder that the run began with. Where that had no weights, nobody else
    has them, and they are written, too. Raises what the disk raises."""
    text = config_text(job)
    whole, config = whole_of(text)[1], config_of(text)[1]
    if not job.model.lora.rank:
        _save_whole(whole, layers, config, folder)
        return
    base = job.named(job.model.hf_folder).absolute()
    if not job.pretrained:
        base = Path(BASE)
        _save_whole(whole, layers, config, folder / base)
    # peft takes seconds to import.
    adapters = importlib.import_module("bamboo.models.hf.lora").Adapters(job)
    _save_adapters(layers, adapters.config, folder, base=str(base))


def _save_whole(
    whole: PreTrainedModel, layers: Sequence[nn.Module], config: Any, folder: Path
) -> None:
    """Write the model of these layers, without adapters. Raises what the disk raises."""
    model = joined(whole, layers, None)
    model.config = config
    if model.can_generate():
        model.generation_config = GenerationConfig.from_model_config(config)
    model.save_pretrained(folder)


def _save_adapters(layers: Sequence[nn.Module], config: Any, folder: Path, *, base: str) -> None:
    """Write the adapters in these layers as peft does; `base` is where the model lies that they
    stand in. Raises what the disk raises."""
    found = {
        _IN_PEFT + name.replace(_NAME, "."): parameter.detach().contiguous()
        for layer in layers
        for name, parameter in layer.named_parameters()
        if not base_name(name)
    }
    save_file(found, folder / ADAPTERS, metadata={"format": "pt"})
    config.inference_mode = True
    config.base_model_name_or_path = base
    config.save_pretrained(str(folder))
