"""Which public architectures trace and cut, of twelve by their configs.

    pip install --no-deps --target FOLDER torchvision==0.28.0
    python -m benchmarks.traced_share [--torchvision FOLDER] [--only resnet18,gpt2]

Six of transformers, six of torchvision, chosen before any was tried, without weights. Each is a
module of which nothing is changed; one of transformers is wrapped to return its logits. It counts
where `split = "trace"` would take it: it is traced in both modes, cut into layers, and these give
the module's own outputs and gradients.

The operators in torchvision's wheel on the package index do not load beside torch's CPU build.
They are of detection, and the import asks for the names of two, which are declared. transformers
does not work beside such a torchvision, so that lies in a folder of its own and is found only
afterwards. Without the folder there are six.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bamboo.models.traced.layer import Drawn
from bamboo.models.traced.tracing import Untraceable, trace
from benchmarks.measuring.options import parsed
from benchmarks.measuring.report import command_of, write_result

SAMPLES = 2
WORDS = 16
BODY: Mapping[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
CONFIGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpt2": ("AutoModelForCausalLM", {"vocab_size": 260, "n_embd": 64, "n_layer": 2, "n_head": 4}),
    "llama": ("AutoModelForCausalLM", BODY),
    "bert": ("AutoModelForMaskedLM", BODY),
    "t5": (
        "AutoModelForSeq2SeqLM",
        {
            "vocab_size": 260,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "vit": ("AutoModelForImageClassification", {**BODY, "image_size": 32, "patch_size": 8}),
    "whisper": (
        "AutoModelForSpeechSeq2Seq",
        {
            "vocab_size": 260,
            "d_model": 64,
            "num_mel_bins": 16,
            "max_source_positions": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
}
"""`model_type` of transformers -> its class, and what its config says."""
IMAGES = (
    "resnet18",
    "densenet121",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "swin_t",
    "convnext_tiny",
)
"""Functions of torchvision.models."""


class Logits(nn.Module):
    """A model of transformers, called as plain modules are."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], **more: Any) -> None:
        super().__init__()
        self.model = model
        self._names = names
        self._more = more

    def forward(self, *inputs: Tensor) -> Tensor:
        given = dict(zip(self._names, inputs, strict=True))
        logits: Tensor = self.model(**given, **self._more).logits
        return logits


def of_transformers(kind: str) -> tuple[Callable[[], nn.Module], tuple[Tensor, ...]]:
    """(makes the module, inputs)."""
    library: Any = importlib.import_module("transformers")
    name, values = CONFIGS[kind]
    config = library.CONFIG_MAPPING[kind](**values)
    tokens = torch.randint(3, 260, (SAMPLES, WORDS))
    names: tuple[str, ...] = ("input_ids",)
    inputs: tuple[Tensor, ...] = (tokens,)
    more: dict[str, Any] = {} if kind in ("bert", "vit") else {"use_cache": False}
    if kind == "vit":
        names, inputs = ("pixel_values",), (torch.rand(SAMPLES, 3, 32, 32),)
    if kind == "t5":
        names, inputs = ("input_ids", "decoder_input_ids"), (tokens, tokens)
    if kind == "whisper":
        names = ("input_features", "decoder_input_ids")
        inputs = (torch.rand(SAMPLES, 16, 64), tokens)
    return (lambda: Logits(getattr(library, name).from_config(config), names, **more)), inputs


def of_torchvision(kind: str) -> tuple[Callable[[], nn.Module], tuple[Tensor, ...]]:
    """(makes the module, inputs)."""
    models: Any = importlib.import_module("torchvision.models")
    return getattr(models, kind), (torch.rand(SAMPLES, 3, 64, 64),)


def declared() -> "torch.library.Library":
    """The operators that torchvision looks for when it is imported."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def tried(make: Callable[[], nn.Module], inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    """What became of one."""
    drawn, begin_s = Drawn(make, seed=1), time.perf_counter()
    try:
        found = trace(drawn, [inputs])
    except Untraceable as error:
        return {"traces": False, "why": error.args[0], "seconds": time.perf_counter() - begin_s}
    return {
        "traces": True,
        "layers": len(found.plans),
        "most_tensors_between": max(len(plan.graph.inputs) for plan in found.plans),
        "equal": found.equal,
        "evaluates": not found.plans[0].train_only,
        "parameters": sum(p.numel() for p in drawn.module().parameters()),
        "seconds": time.perf_counter() - begin_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchvision", default="", help="the folder that it is installed in")
    parser.add_argument("--only", default="", help="names, comma separated")
    arguments = parsed(parser)
    there = [*CONFIGS, *(IMAGES if arguments.torchvision else ())]
    wanted = [name for name in there if not arguments.only or name in arguments.only.split(",")]
    torch.manual_seed(1)
    library = declared()
    rows = {}
    for name in wanted:
        if name in IMAGES and arguments.torchvision not in sys.path:
            sys.path.append(arguments.torchvision)
        row = tried(*(of_transformers(name) if name in CONFIGS else of_torchvision(name)))
        rows[name] = row
        print(f"{name:20} {' '.join(f'{key}={value}' for key, value in row.items())}", flush=True)
    del library
    share = sum(row["traces"] for row in rows.values())
    print(f"{share} of {len(rows)} trace")
    body = {"share": share, "of": len(rows), "samples": SAMPLES, "rows": rows}
    command = command_of("traced_share", arguments)
    print(f"written: {write_result('traced-share', command, body, arguments.only).name}")


if __name__ == "__main__":
    main()
