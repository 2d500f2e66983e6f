"""Tiny models of each family, in folders as `save_pretrained` writes them.

transformers takes seconds to import, and each process of the suite reads all of its files: so only
a test that runs imports it.
"""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "vocab_size": 260,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    },
    "qwen2": {
        "vocab_size": 260,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    },
    "gpt2": {
        "vocab_size": 260,
        "n_positions": 64,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
    },
    "bert": {
        "vocab_size": 260,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    },
    "t5": {
        "vocab_size": 300,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "vit": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "image_size": 8,
        "patch_size": 2,
        "num_channels": 1,
        "num_labels": 10,
    },
}
UNDROPPED: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "t5": {"dropout_rate": 0.0},
}
"""Without the dropout that a family has by default."""
_CLASSES = {
    "bert": "AutoModelForMaskedLM",
    "t5": "AutoModelForSeq2SeqLM",
    "vit": "AutoModelForImageClassification",
}


def class_of(family: str) -> Any:
    """The class that makes the whole model."""
    name = _CLASSES.get(family, "AutoModelForCausalLM")
    return getattr(importlib.import_module("transformers"), name)


def config_folder(folder: Path, family: str, **changes: Any) -> Path:
    """A folder with a config.json alone."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"model_type": family, **CONFIGS[family], **changes}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def saved_folder(folder: Path, family: str, **changes: Any) -> Path:
    """A folder with config.json and weights."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[family](**{**CONFIGS[family], **changes})
    torch.manual_seed(7)
    model = class_of(family).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # Zeros and ones would hide what is not read.
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    model.save_pretrained(folder)
    return folder
