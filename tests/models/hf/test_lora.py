"""Low-rank adapters in layers: against peft in the whole model, bit for bit."""

from pathlib import Path

import pytest
import torch

from bamboo.models import build_layer, build_model, run_layers, unpacked
from tests.models.hf.families import class_of, saved_folder
from tests.models.hf.test_equal import hf_job, inputs_of

TARGETS = ["q_proj", "down_proj"]
LORA = f"model.lora={{rank=4, alpha=8.0, targets={TARGETS}}}"


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_adapters_have_the_bits_of_peft(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    folder = saved_folder(tmp_path / "model", "llama")
    workload = build_model(hf_job(tmp_path, LORA))
    layers = [(i, build_layer(workload, i, 1)) for i in range(len(workload.layers))]
    adapters = {
        name: parameter
        for _, layer in layers
        for name, parameter in layer.named_parameters()
        if parameter.requires_grad
    }
    assert len(adapters) == 2 * len(TARGETS) * 2
    with torch.no_grad():
        for name, parameter in adapters.items():
            if "lora_B" in name:  # zeros at first, which would hide what is before them
                assert not parameter.any()
                parameter.normal_(std=0.1)
    whole = get_peft_model(
        class_of("llama").from_pretrained(folder, attn_implementation="sdpa"),
        LoraConfig(r=4, lora_alpha=8.0, target_modules=TARGETS),
    ).train()
    theirs = {
        name.removeprefix("base_model.model."): parameter
        for name, parameter in whole.named_parameters()
        if parameter.requires_grad
    }
    assert theirs.keys() == adapters.keys()
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(adapters[name])
    inputs, targets = inputs_of("llama")
    (output,) = run_layers(layers, inputs, seed=1, step=0, microbatch=0)
    workload.loss(output, targets).backward()
    logits = whole(input_ids=inputs[0]).logits
    workload.loss(logits, targets).backward()
    assert torch.equal(unpacked((output,)), logits)
    for name, parameter in theirs.items():
        assert parameter.grad is not None
        assert torch.equal(adapters[name].grad, parameter.grad), name
