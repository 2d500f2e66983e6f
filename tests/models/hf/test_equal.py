"""Each family, cut into layers, against the whole model of transformers: logits and all gradients,
bit for bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import MadeOfText
from bamboo.models import build_layer, build_model, run_layers, tied_names, unpacked
from tests.models.hf.families import CONFIGS, UNDROPPED, class_of, saved_folder

ROUNDED = {"t5": ("shared.weight",)}
"""What is added in another order: three uses of T5's embedding, two of which are in one layer."""


def hf_job(folder: Path, *more: str, family: str = "") -> JobConfig:
    """A job with the model in `folder / "model"`, and data of one's own for a family of images."""
    (folder / "job.toml").write_text('[model]\nmodel = "hf:model"\ncontext = 16\n')
    (folder / "images.py").write_text("def data(job):\n    return object()\n")
    own = ("data.source=images.py:data",) if family == "vit" else ()
    return load_job(folder / "job.toml", (*own, *more))


def inputs_of(family: str) -> tuple[tuple[Tensor, ...], Tensor]:
    """(Inputs, targets) of three samples."""
    generator = torch.Generator().manual_seed(3)
    if family == "vit":
        images = torch.rand(3, 1, 8, 8, generator=generator)
        return (images,), torch.randint(10, (3,), generator=generator)
    tokens = torch.randint(250, (3, 16), generator=generator)
    targets = torch.randint(250, (3, 16), generator=generator)
    if family != "t5":
        return (tokens,), targets
    said = torch.randint(250, (3, 9), generator=generator)
    return (tokens, said), targets[:, :9]


class Unequal:
    """Three documents, of 1, 9 and 16 tokens."""

    LENGTHS = (1, 9, 16)
    samples = 3
    digest = "of three documents"
    unit = "token"
    most = 16

    def count(self, index: int, key: int) -> int:
        return self.LENGTHS[index]

    def batch(
        self, indices: Sequence[int], keys: Sequence[int]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        tokens = torch.arange(len(indices) * 16).reshape(-1, 16) + 3
        return (tokens,), (tokens,)


def whole_logits(family: str, model: Any, inputs: tuple[Tensor, ...]) -> Tensor:
    """By transformers' own forward."""
    if family == "vit":
        return model(pixel_values=inputs[0]).logits
    if family == "t5":
        tokens, before = inputs
        # A cache, which training has no use for, computes by another kernel.
        return model(input_ids=tokens, decoder_input_ids=before, use_cache=False).logits
    return model(input_ids=inputs[0]).logits


@pytest.mark.parametrize("family", CONFIGS)
def test_a_cut_model_has_the_bits_of_the_whole(tmp_path: Path, family: str) -> None:
    folder = saved_folder(tmp_path / "model", family, **UNDROPPED.get(family, {}))
    workload = build_model(hf_job(tmp_path, family=family))
    inputs, targets = inputs_of(family)
    whole = class_of(family).from_pretrained(folder, attn_implementation="sdpa").train()
    logits = whole_logits(family, whole, inputs)
    workload.loss(logits, targets).backward()
    theirs = {name: parameter.grad for name, parameter in whole.named_parameters()}
    owners = tied_names(workload)
    count = len(workload.layers)
    for recomputed in (range(0), range(count - 1)):
        layers = [(i, build_layer(workload, i, 1)) for i in range(count)]
        output = run_layers(layers, inputs, recomputed, seed=1, step=0, microbatch=0)
        workload.loss(unpacked(output), targets).backward()
        assert torch.equal(unpacked(output), logits)
        ours: dict[str, Tensor] = {}
        for index, layer in layers:
            for name, parameter in layer.named_parameters():
                owner = owners.get(f"{index}.{name}", f"{index}.{name}").partition(".")[2]
                assert parameter.grad is not None, name
                ours[owner] = ours[owner] + parameter.grad if owner in ours else parameter.grad
        assert ours.keys() == theirs.keys()
        for name, gradient in theirs.items():
            if name in ROUNDED.get(family, ()):
                torch.testing.assert_close(ours[name], gradient)
            else:
                assert torch.equal(ours[name], gradient), name


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_documents_of_unequal_length_have_the_bits_of_the_whole(
    tmp_path: Path, family: str
) -> None:
    folder = saved_folder(tmp_path / "model", family, **UNDROPPED[family])
    workload = build_model(hf_job(tmp_path))
    assert isinstance(workload.data, MadeOfText)
    inputs, (targets,) = workload.data.make(Unequal()).batch([0, 1, 2], [5, 6, 7])
    *tokens, mask = inputs
    assert mask.sum(dim=1).tolist() in ([1, 9, 16], [1, 9, 15])
    layers = [(i, build_layer(workload, i, 1)) for i in range(len(workload.layers))]
    logits = unpacked(run_layers(layers, inputs, range(0), seed=1, step=0, microbatch=0))
    whole = class_of(family).from_pretrained(folder, attn_implementation="sdpa").train()
    if family == "bert":
        theirs = whole(input_ids=tokens[0], attention_mask=mask).logits
    else:
        theirs = whole(
            input_ids=tokens[0], decoder_input_ids=tokens[1], attention_mask=mask, use_cache=False
        ).logits
    assert torch.equal(logits, theirs)
    assert workload.loss(logits, targets).isfinite()
